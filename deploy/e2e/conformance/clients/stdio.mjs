// The official clients over standard streams, with the farm inside the program:
// node stdio.mjs PROGRAM CLIP DIR. It exits with 0 when everything went as a
// user expects.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Client } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { Client as OlderClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as OlderTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { CallToolResultSchema, ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

const [program, clip, dir] = process.argv.slice(2);
const server = { command: program, args: ['mcp', '--data-dir', `${dir}/data`, '--input-dir', dirname(clip), '--output-dir', `${dir}/out`], stderr: 'inherit' };
const args = {
  source_asset_uri: pathToFileURL(clip).href, output_format: 'mp4', resolution: '720p', quality: 'draft', watermark: { text: '© stdio' },
};
async function isFile(video) {
  assert.equal(video.frame_count, 30);
  assert.equal(video.download_url, undefined);
  const bytes = await readFile(video.file_path);
  assert.equal(createHash('sha256').update(bytes).digest('hex'), video.sha256);
  assert.equal((await readFile(video.preview_path)).subarray(1, 4).toString(), 'PNG');
}

const modern = new Client({ name: 'modern', version: '1.0.0' }, { capabilities: {}, versionNegotiation: { mode: 'auto' } });
await modern.connect(new StdioClientTransport(server));
assert.equal(modern.getProtocolEra(), 'modern');
let { structuredContent: s } = await modern.callTool({ name: 'vidforge_render_video', arguments: args });
for (const id = s.render_id; !s.terminal; await new Promise((resolve) => setTimeout(resolve, 100))) {
  s = (await modern.callTool({ name: 'vidforge_get_render_status', arguments: { render_id: id } })).structuredContent;
  if (s.state === 'awaiting_watermark_approval') await modern.callTool({ name: s.follow_up.tool, arguments: s.follow_up.arguments });
}
await isFile(s);
await modern.close();
console.log('  ok 2026-07-28: a file, its preview, approval, a file');

const older = new OlderClient({ name: 'older', version: '1.0.0' }, { capabilities: { elicitation: { form: {} }, tasks: { requests: {} } } });
let asked = 0;
older.setRequestHandler(ElicitRequestSchema, async () => { asked++; return { action: 'accept', content: { approved: true } }; });
await older.connect(new OlderTransport(server));
await older.listTools();
let last;
for await (last of older.experimental.tasks.callToolStream({ name: 'vidforge_render_video', arguments: args }, CallToolResultSchema, { task: { ttl: 3_600_000 }, timeout: 180_000 }));
assert.equal(last.type, 'result', JSON.stringify(last));
await isFile(last.result.structuredContent);
assert.equal(asked, 1);
await older.close();
console.log('  ok 2025-11-25: a task that asks, a file');
process.exit(0);
