"""The short form of a static endpoint on the command line."""

from __future__ import annotations

FORM = "id=URL=model[,model]"


def parse_endpoint(text: str) -> dict[str, object]:
    """Read `e1=http://127.0.0.1:8000=llama3,default` as an entry of `endpoints`.

    Spaces are trimmed; further checks are those of a file. Raises ValueError showing the form.
    """
    name, first, rest = text.partition("=")
    url, last, models = rest.rpartition("=")
    names = [name.strip() for name in models.split(",")]
    if not (first and last and name.strip() and url.strip() and all(names)):
        raise ValueError(f"must be {FORM} such as e1=http://127.0.0.1:8000=llama3, got {text!r}")
    return {"id": name.strip(), "url": url.strip(), "models": names}
