// The official TypeScript SDK with its experimental tasks, MCP 2025-11-25:
// node sdk.mjs URL CLIP. It exits with 0 when everything went as a user expects.
import assert from 'node:assert/strict';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CallToolResultSchema, ElicitationCompleteNotificationSchema, ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import {
  check, done, isPNG, isVideo, mode, parameter, patience, person, previewOf, renderArguments, untilLine, upload, url,
} from './vidforge.mjs';

// host is a client that declares these capabilities and answers requests for a
// decision by answer.
async function host(elicitation, answer, options) {
  const client = new Client({ name: 'sdk', version: '1.0.0' }, {
    capabilities: { ...(elicitation ? { elicitation } : {}), tasks: { requests: {} } },
  });
  const notices = [];
  client.fallbackNotificationHandler = async (notice) => { notices.push(notice); };
  if (elicitation) {
    client.setRequestHandler(ElicitRequestSchema, (request) => answer(request.params, client));
    client.setNotificationHandler(ElicitationCompleteNotificationSchema, async (notice) => { notices.push(notice); });
  }
  await client.connect(new StreamableHTTPClientTransport(url, options));
  assert.deepEqual(client.getServerCapabilities().tasks, { cancel: {}, requests: { tools: { call: {} } } });
  return { client, notices };
}

// render follows a render to its end, and returns every message of its stream.
async function render({ client }, source, more, options = {}) {
  const messages = [];
  await client.listTools(); // tells which tools make tasks
  for await (const message of client.experimental.tasks.callToolStream(
    { name: 'vidforge_render_video', arguments: renderArguments(source, more) }, CallToolResultSchema,
    { task: { ttl: 3_600_000 }, timeout: patience, maxTotalTimeout: patience, ...options },
  )) {
    messages.push(message);
    options.onmessage?.(message);
  }
  return messages;
}
const resultOf = (messages) => {
  const last = messages.at(-1);
  assert.equal(last.type, 'result', JSON.stringify(last.error?.message ?? last));
  return last.result;
};

const approving = (seen) => async (params, client) => {
  seen.push(params);
  isPNG((await client.readResource({ uri: previewOf(params.message) })).contents);
  return { action: 'accept', content: { approved: true, note: 'looks good' } };
};

if (mode === 'submit') { // and die
  const h = await host({ form: {} }, () => new Promise(() => {}));
  await render(h, parameter, {}, { onmessage: (message) => { if (message.type === 'taskCreated') console.log(`task ${message.task.taskId}`); } });
}

const source = await upload();
await check('render, preview, approval by a form, video', async () => {
  const seen = [];
  const h = await host({ form: {} }, approving(seen));
  const progress = [];
  const messages = await render(h, source, {}, { onprogress: (p) => progress.push(p) });
  await isVideo(resultOf(messages));
  assert.equal(messages[0].type, 'taskCreated');
  const id = messages[0].task.taskId;
  assert.equal(seen.length, 1);
  assert.equal(seen[0]._meta['io.modelcontextprotocol/related-task'].taskId, id);
  for (const [i, p] of progress.entries()) assert.ok(i === 0 || p.progress > progress[i - 1].progress, JSON.stringify(progress));
  const told = h.notices.filter((notice) => notice.method === 'notifications/tasks/status');
  assert.ok(told.some((notice) => notice.params.taskId === id && notice.params.status === 'completed'), JSON.stringify(told));
  await h.client.close();
});
await check('approval on the page that a url names', async () => {
  const seen = [];
  const h = await host({ url: {} }, async (params) => {
    seen.push(params);
    assert.equal(params.mode, 'url');
    await person(params.url, 'approve');
    return { action: 'accept' };
  });
  await isVideo(resultOf(await render(h, source)));
  assert.equal(seen.length, 1);
  const complete = h.notices.filter((notice) => notice.method === 'notifications/elicitation/complete');
  assert.deepEqual(complete.map((notice) => notice.params.elicitationId), [seen[0].elicitationId]);
  await h.client.close();
});
await check('a rejection is a failed task whose result says why', async () => {
  const h = await host({ form: {} }, async () => ({ action: 'accept', content: { approved: false } }));
  const messages = await render(h, source);
  const id = messages[0].task.taskId;
  const task = await h.client.experimental.tasks.getTask(id);
  assert.equal(task.status, 'failed');
  assert.match(task.statusMessage, /watermark_rejected/);
  assert.match(task.statusMessage, /vidforge_render_video/); // the next call
  const result = await h.client.experimental.tasks.getTaskResult(id, CallToolResultSchema);
  assert.equal(result.isError, true);
  assert.equal(result.structuredContent.code, 'watermark_rejected');
  await h.client.close();
});
await check('a client that declines by itself: somebody else decides', async () => {
  let declined;
  const asked = new Promise((resolve) => { declined = resolve; });
  const h = await host({ form: {} }, async (params) => { declined(params); return { action: 'decline' }; });
  const rendered = render(h, source);
  const id = (await asked)._meta['io.modelcontextprotocol/related-task'].taskId;
  const other = await host(undefined);
  const decided = await other.client.callTool({ name: 'vidforge_approve_watermark', arguments: { render_id: id, approved: true } });
  assert.equal(decided.structuredContent.decision, 'approved');
  await isVideo(resultOf(await rendered));
  await other.client.close();
  await h.client.close();
});
await check('a client that dies and comes back', async () => {
  const id = await untilLine('task ', 'submit', source);
  const seen = [];
  const h = await host({ form: {} }, approving(seen));
  const result = await h.client.experimental.tasks.getTaskResult(id, CallToolResultSchema, { timeout: patience });
  await isVideo(result);
  assert.equal(seen.length, 1);
  assert.equal((await h.client.experimental.tasks.getTask(id)).status, 'completed');
  await h.client.close();
});
await check('a client without a GET stream', async () => {
  const seen = [];
  const h = await host({ form: {} }, approving(seen), {
    fetch: (input, init) => (init?.method === 'GET' ? Promise.resolve(new Response(null, { status: 405 })) : fetch(input, init)),
  });
  await isVideo(resultOf(await render(h, source)));
  assert.equal(seen.length, 1);
  await h.client.close();
});
await check('a task is cancelled', async () => {
  const h = await host({ form: {} }, () => new Promise(() => {}));
  let id;
  const rendered = render(h, source, {}, { onmessage: (message) => {
    if (message.type === 'taskCreated') { id = message.task.taskId; h.client.experimental.tasks.cancelTask(id); }
  } }).catch((error) => error);
  await rendered;
  assert.equal((await h.client.experimental.tasks.getTask(id)).status, 'cancelled');
  await h.client.close();
});
done('@modelcontextprotocol/sdk, 2025-11-25');
