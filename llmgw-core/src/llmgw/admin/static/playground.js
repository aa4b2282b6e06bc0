// Sends the conversation, shows the answer as it comes, and how fast it came.
"use strict";

const form = document.getElementById("chat");
const talk = document.getElementById("talk");
const figures = document.getElementById("figures");
let messages = [];

function say(who, text) {
  const line = document.createElement("p");
  line.className = who;
  line.textContent = text; // never as markup: models write what they like
  talk.append(line);
  return line;
}

// Yields the pieces of text in an event stream.
async function* pieces(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (!data || data === "[DONE]") continue;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      const text = event.choices?.[0]?.delta?.content;
      if (text) yield text;
    }
  }
}

async function ask(model, apiKey) {
  const began = performance.now();
  const response = await fetch("/admin/playground", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model, messages, api_key: apiKey }),
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  const line = say("assistant", "");
  let first = 0;
  let count = 0;
  for await (const text of pieces(response)) {
    first ||= performance.now();
    count += 1;
    line.textContent += text;
    const seconds = (performance.now() - first) / 1000;
    const rate = count > 1 && seconds > 0 ? `, ${((count - 1) / seconds).toFixed(1)} tokens/s` : "";
    figures.textContent = `first token after ${Math.round(first - began)} ms${rate}`;
  }
  messages.push({ role: "assistant", content: line.textContent });
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const said = new FormData(form);
  const button = form.querySelector("button");
  button.disabled = true;
  messages.push({ role: "user", content: said.get("text") });
  say("user", said.get("text"));
  form.elements.text.value = "";
  try {
    await ask(said.get("model"), said.get("api_key"));
  } catch (error) {
    say("problems", error.message);
    messages.pop();
  } finally {
    button.disabled = false;
    form.elements.text.focus();
  }
});

form.addEventListener("reset", () => {
  messages = [];
  talk.replaceChildren();
  figures.textContent = "";
});
