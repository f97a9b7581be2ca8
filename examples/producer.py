"""The smallest producer: two turns of a conversation, streamed. RQ_REDIS_URL says where Redis is."""

from tokenloom.producer import Client

client = Client()
session = client.open(defaults={"temperature": 0.7, "max_tokens": 120})
for question in ("What is a lighthouse for?", "Who used to live in one?"):
    print(f"\n> {question}")
    step = session.step(messages=[{"role": "user", "content": question}])
    for text in step.stream_text():
        print(text, end="", flush=True)
    result = step.result()
    print(f"\n({result.usage.generated} tokens, ended by {result.reason})")
session.close()
