// The official OpenAI client for Node.js, each use once; the answers go to stdout as one JSON object.
const OpenAI = require("openai");

const { BASE_URL: baseURL, KEY: apiKey, CHAT: model, EMBED: embedder, CALLER: caller, QUESTION: content } = process.env;
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const asked = { model, messages: [{ role: "user", content }], max_tokens: 32, temperature: 0 };
const schema = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 } },
  required: ["city"],
  additionalProperties: false,
};
const tool = { type: "function", function: { name: "get_weather", parameters: schema } };

async function refused(call) {
  try {
    await call();
  } catch (error) {
    return { kind: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
  return null;
}

async function main() {
  const models = [];
  for await (const one of client.models.list()) models.push(one.id);

  const chat = await client.chat.completions.create(asked);

  const pieces = [];
  const stream = await client.chat.completions.create({
    ...asked,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const piece of stream) pieces.push(piece);

  const tools = await client.chat.completions.create({
    ...asked,
    model: caller,
    tools: [tool],
    tool_choice: "required",
  });
  const structured = await client.chat.completions.create({
    ...asked,
    max_tokens: 60,
    response_format: { type: "json_schema", json_schema: { name: "capital", strict: true, schema } },
  });
  const vectors = await client.embeddings.create({ model: embedder, input: ["one", "two"] });
  const plain = await client.embeddings.create({
    model: embedder,
    input: ["one", "two"],
    encoding_format: "float",
  });

  const left = await client.chat.completions.create({ ...asked, max_tokens: 400, stream: true });
  for await (const _ of left) break;

  const stranger = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
  console.log(
    JSON.stringify({
      models,
      retrieved: (await client.models.retrieve(embedder)).id,
      chat: chat.choices[0].message.content,
      usage: chat.usage,
      streamed: pieces.map((piece) => piece.choices[0]?.delta.content ?? "").join(""),
      streamed_usage: pieces.at(-1).usage,
      tool: tools.choices[0].message.tool_calls[0].function,
      structured: structured.choices[0].message.content,
      vectors: vectors.data.map((item) => item.embedding),
      plain: plain.data.map((item) => item.embedding),
      unknown_model: await refused(() => client.chat.completions.create({ ...asked, model: "nope" })),
      wrong_key: await refused(() => stranger.models.list()),
    }),
  );
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
