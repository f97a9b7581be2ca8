// A producer in JavaScript, written after docs/protocol.md alone: it uses no code of tokenloom's.
import { randomUUID } from "node:crypto";
import { decode, encode } from "@msgpack/msgpack";
import { RESP_TYPES, createClient } from "redis";

const NAMESPACE = "tokenloom";
const QUEUE = "steps";
const FUNCTION = "tokenloom.schemas.jobs.";
const MSGPACK = { useBigInt64: true, ignoreUndefined: true }; // seeds are 64-bit integers
const BYTES = { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } }; // msgpack is not text
const OVER = ["finished", "failed", "stopped", "canceled"];

// The mark that asks a step to end; docs/protocol.md has it.
const CANCEL = `
local over = {finished = true, failed = true, stopped = true, canceled = true}
local status = redis.call('HGET', ARGV[5], 'status')
if status and over[status] then return 0 end
local record = redis.call('HGET', ARGV[4], ARGV[1])
if record then
  local reason = cmsgpack.unpack(record).reason
  if reason and (reason ~= 'error' or not status) then return 0 end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
`;

const pack = (value) => Buffer.from(encode(value, MSGPACK));
const unpack = (bytes) => decode(bytes, MSGPACK);
const key = (session, part) => `${NAMESPACE}:{${session}}:${part}`;

export class Producer {
  /** Two connections: a blocking XREAD keeps one busy. */
  static async connect(url) {
    const made = new Producer();
    made.clients = [createClient({ url, RESP: 2 }), createClient({ url, RESP: 2 })];
    await Promise.all(made.clients.map((client) => client.connect()));
    return made;
  }

  close() {
    for (const client of this.clients) client.destroy();
  }

  redis(...command) {
    return this.clients[0].sendCommand(command, BYTES);
  }

  blocking(...command) {
    return this.clients[1].sendCommand(command, BYTES);
  }

  /** Enqueues a job unless its id is taken. `after`: the stream id that its events come after. */
  async enqueue(operation, kwargs, { id = randomUUID(), sessions = [kwargs.session] } = {}) {
    const job = `rq:job:${id}`;
    const newest = await this.redis("XREVRANGE", key(kwargs.session, "events"), "+", "-", "COUNT", "1");
    const after = newest.length ? newest[0][0].toString() : "0-0";
    const now = new Date().toISOString();
    const fields = {
      data: pack([FUNCTION + operation, null, [], kwargs]),
      meta: pack({ sessions, namespace: NAMESPACE, after }),
      description: `${operation} ${kwargs.session}`,
      origin: QUEUE,
      status: "queued",
      created_at: now,
      enqueued_at: now,
      timeout: "3600",
      result_ttl: "3600",
      failure_ttl: "604800",
    };
    for (;;) {
      await this.redis("WATCH", job);
      if (await this.redis("EXISTS", job)) {
        await this.redis("UNWATCH");
        return { id, session: kwargs.session, after, isNew: false };
      }
      await this.redis("MULTI");
      await this.redis("SADD", "rq:queues", `rq:queue:${QUEUE}`);
      await this.redis("HSET", job, ...Object.entries(fields).flat());
      await this.redis("RPUSH", `rq:queue:${QUEUE}`, id);
      if ((await this.redis("EXEC")) !== null) {
        return { id, session: kwargs.session, after, isNew: true };
      }
    }
  }

  /** The job's events as they arrive, the last one `finished` or what ends another operation. */
  async *tail({ id, session, after }) {
    let last = after;
    for (;;) {
      const reply = await this.blocking(
        "XREAD", "COUNT", "512", "BLOCK", "1000", "STREAMS", key(session, "events"), last);
      if (reply === null && OVER.includes(await this.status(id))) return;
      for (const [entry, [, body]] of reply?.[0][1] ?? []) {
        last = entry.toString();
        const event = unpack(body);
        if (event.job !== id) continue;
        yield { id: last, ...event };
        if (!["appended", "tokens"].includes(event.type)) return;
      }
    }
  }

  async all(job) {
    const events = [];
    for await (const event of this.tail(job)) events.push(event);
    return events;
  }

  async status(id) {
    return (await this.redis("HGET", `rq:job:${id}`, "status"))?.toString();
  }

  /** RQ's status of a job once it is over, a moment after its last event. */
  async over(id) {
    for (;;) {
      const status = await this.status(id);
      if (status === undefined || OVER.includes(status)) return status;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  /** How a job ended, with its result or its error; null while it has not. */
  async record({ id, session }) {
    const bytes = await this.redis("HGET", key(session, "steps"), id);
    return bytes && unpack(bytes);
  }

  /** What RQ keeps of a finished job. */
  async result(id) {
    await this.over(id);
    const [entry] = await this.redis("XREVRANGE", `rq:results:${id}`, "+", "-", "COUNT", "1");
    const fields = entry[1].map(String);
    const value = fields[fields.indexOf("return_value") + 1];
    return fields.includes("return_value") ? unpack(Buffer.from(value, "base64")) : null;
  }

  /** False when the step is over already. */
  async cancel({ id, session }) {
    const given = [id, String(Date.now() / 1000), "604800", key(session, "steps"), `rq:job:${id}`];
    return (await this.redis("EVAL", CANCEL, "1", key(session, "cancels"), ...given)) === 1;
  }

  /** The token ids of the log, and which of them were generated. */
  async log(session) {
    const bytes = (await this.redis("GET", key(session, "log"))) ?? Buffer.alloc(0);
    const words = Array.from({ length: bytes.length / 4 }, (_, index) => bytes.readUInt32LE(4 * index));
    return { tokens: words.map((word) => word & 0xffffff), generated: words.map((word) => (word >>> 24) & 1) };
  }
}
