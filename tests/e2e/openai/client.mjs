// What people do with OpenAI's client, unmodified: chats, streams, completions, errors, aborts. Any deviation throws.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: `http://127.0.0.1:${process.argv[2]}/v1`, apiKey: 'secret', maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: 'system', content: 'Be brief.' }, { role: 'user', content: [{ type: 'text', text: 'Hello' }] }];
const options = { model, temperature: 0, max_tokens: 12, ignore_eos: true };

// A whole chat and the same as a stream.
const whole = await client.chat.completions.create({ ...options, messages, logprobs: true, top_logprobs: 2 });
assert.equal(whole.object, 'chat.completion');
assert.equal(whole.choices[0].message.role, 'assistant');
assert.equal(whole.choices[0].finish_reason, 'length');
assert.equal(whole.usage.completion_tokens, 12);
assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + 12);
assert.equal(whole.choices[0].logprobs.content.length, 12);
let text = '', role, reason, usage;
const stream = await client.chat.completions.create({ ...options, messages, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  usage ??= chunk.usage;
  for (const choice of chunk.choices) {
    role ??= choice.delta.role;
    text += choice.delta.content ?? '';
    reason ??= choice.finish_reason;
  }
}
assert.equal(text, whole.choices[0].message.content);
assert.equal(role, 'assistant');
assert.equal(reason, 'length');
assert.deepEqual([usage.prompt_tokens, usage.completion_tokens], [whole.usage.prompt_tokens, 12]);

// The client's own collector of streams agrees.
const collected = await client.chat.completions.stream({ ...options, messages }).finalChatCompletion();
assert.equal(collected.choices[0].message.content, text);

// Several answers, a seed, a stop text.
const several = await client.chat.completions.create({ ...options, messages, n: 3, temperature: 1, seed: 5 });
const again = await client.chat.completions.create({ ...options, messages, n: 3, temperature: 1, seed: 5 });
assert.deepEqual(several.choices.map((c) => c.message.content), again.choices.map((c) => c.message.content));
assert.equal(new Set(several.choices.map((c) => c.index)).size, 3);
const stopped = await client.chat.completions.create({ ...options, messages, stop: [text.slice(3, 5)] });
assert.equal(stopped.choices[0].finish_reason, 'stop');
assert.equal(stopped.choices[0].message.content, text.slice(0, text.indexOf(text.slice(3, 5))));

// Completions.
const completion = await client.completions.create({ ...options, prompt: ['one', 'two'], logprobs: 1, echo: true });
assert.deepEqual(completion.choices.map((c) => c.index), [0, 1]);
assert.ok(completion.choices[1].text.startsWith('two'));

// Errors are the client's own classes.
await assert.rejects(client.chat.completions.create({ ...options, messages, model: 'gpt-9' }), OpenAI.NotFoundError);
await assert.rejects(client.chat.completions.create({ ...options, messages, temperature: -1 }), (error) => {
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, 'temperature');
  return true;
});
await assert.rejects(client.chat.completions.create({ ...options, messages, max_tokens: 1e6 }), (error) => {
  assert.equal(error.code, 'context_length_exceeded');
  return true;
});
await assert.rejects(client.chat.completions.create({ ...options, messages, tools: [{ type: 'function', function: { name: 'f' } }] }),
  OpenAI.BadRequestError);
await assert.rejects(client.embeddings.create({ model, input: 'x' }), (error) => error.status === 501);
const stranger = new OpenAI({ baseURL: client.baseURL, apiKey: 'guess', maxRetries: 0 });
await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);

// An abort in the midst of a stream.
const long = await client.chat.completions.create({ ...options, messages, max_tokens: 400, stream: true });
let seen = 0;
for await (const chunk of long) if (chunk.choices.length > 0 && ++seen === 3) long.controller.abort();
assert.equal(seen, 3);

console.log(`OpenAI's client is content with ${model}`);
