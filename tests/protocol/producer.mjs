// node producer.mjs REDIS_URL SESSION: plays through everything a producer does, and prints what it saw as JSON.
import { Producer } from "./tokenloom.mjs";

const [url, session] = process.argv.slice(2);
const producer = await Producer.connect(url);
const seen = { events: {}, records: {}, results: {} };

async function run(operation, kwargs, options) {
  const job = await producer.enqueue(operation, kwargs, options);
  seen.events[job.id] = await producer.all(job);
  seen.records[job.id] = await producer.record(job);
  return job;
}

const sampling = { temperature: 0.9, top_k: 40, ignore_eos: true };
const seed = 0xfedcba9876543210n;
const opened = await run("open", { session, seed, defaults: sampling }, { id: `${session}-open` });
seen.results.open = await producer.result(opened.id);

const generation = { max_tokens: 12, stop_tokens: [], logit_bias: { 3: -100 } };
const first = await run("step", { session, text: "Once upon a time", generation }, { id: `${session}-first` });
seen.results.first = await producer.result(first.id);
const again = await producer.enqueue("step", { session, text: "Once upon a time", generation }, { id: first.id });
seen.repeated = again.isNew;

const targets = [`${session}.a`, `${session}.b`];
const cloned = { session, targets, seeds: [5n, 0xffffffffffffffffn] };
await run("clone", cloned, { id: `${session}-clone`, sessions: [session, ...targets] });
for (const target of targets) {
  await run("step", { session: target, generation: { max_tokens: 8 } }, { id: `${target.replace(".", "-")}-step` });
}

await run("rewind", { session, to: 6 }, { id: `${session}-rewind` });
const messages = [{ role: "user", content: "And then?" }];
await run("step", { session, messages, generation: { max_tokens: 5, logprobs: 2 } }, { id: `${session}-second` });

const long = await producer.enqueue("step", { session, generation: { max_tokens: 400 } }, { id: `${session}-long` });
seen.events[long.id] = [];
for await (const event of producer.tail(long)) {
  seen.events[long.id].push(event);
  if (event.type === "tokens" && seen.cancelled === undefined) seen.cancelled = await producer.cancel(long);
}
seen.records[long.id] = await producer.record(long);
seen.cancelledAgain = await producer.cancel(long);

await run("step", { session: `${session}.missing`, text: "?" }, { id: `${session}-missing` });
await run("step", { session, text: "?", colour: "blue" }, { id: `${session}-invalid` });
await run("rewind", { session, to: 100000 }, { id: `${session}-too-far` });
seen.status = await producer.over(`${session}-too-far`);

seen.logs = {};
for (const name of [session, ...targets]) seen.logs[name] = await producer.log(name);
await run("close", { session }, { id: `${session}-close` });
producer.close();

const readable = (_, value) => (typeof value === "bigint" ? value.toString() : value);
console.log(JSON.stringify(seen, readable));
