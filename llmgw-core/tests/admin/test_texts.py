"""How values read on the page."""

from __future__ import annotations

from llmgw.admin.pages.texts import spelled


def test_marked_words_are_code_and_nothing_in_a_sentence_is_markup() -> None:
    said = spelled("run `llmgw <b>`, <i>not</i> ` & go")
    assert said == "run <code>llmgw &lt;b&gt;</code>, &lt;i&gt;not&lt;/i&gt; ` &amp; go"
    assert spelled("-") == "-"
