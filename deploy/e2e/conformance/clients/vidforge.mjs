// What the clients' scripts share: a source, an approval page's reader, checks.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { spawn } from 'node:child_process';

export const extension = 'io.modelcontextprotocol/tasks';
export const patience = 180_000; // most milliseconds of a render

// The arguments of each script.
export const url = new URL(process.argv[2]);
const clip = process.argv[3];
export const mode = process.argv[4]; // what a second process is to do
export const parameter = process.argv[5];

let checks = 0;
export async function check(name, run) {
  await run();
  checks++;
  console.log(`  ok ${name}`);
}
export function done(name) {
  console.log(`${name}: ${checks} checks passed`);
  process.exit(0);
}

export async function upload() {
  const response = await fetch(new URL('/v1/assets?name=clip.mp4', url), {
    method: 'POST', headers: { 'content-type': 'video/mp4' }, body: await readFile(clip),
  });
  assert.equal(response.status, 201, await response.clone().text());
  return (await response.json()).asset_uri;
}

export const renderArguments = (source, more) => ({
  source_asset_uri: source, output_format: 'mp4', resolution: '720p', quality: 'draft', watermark: { text: '© TypeScript' }, ...more,
});

// person is who opens the approval page and decides there.
export async function person(page, decision) {
  const shown = await fetch(page);
  assert.equal(shown.status, 200, `the page answers ${shown.status}`);
  const html = await shown.text();
  const token = /name="csrf_token" value="([^"]+)"/.exec(html)?.[1];
  assert.ok(token, 'the page has a form');
  const cookies = shown.headers.getSetCookie().map((cookie) => cookie.split(';')[0]).join('; ');
  const decided = await fetch(page, {
    method: 'POST', redirect: 'manual',
    headers: { 'content-type': 'application/x-www-form-urlencoded', origin: new URL(page).origin, ...(cookies ? { cookie: cookies } : {}) },
    body: new URLSearchParams({ csrf_token: token, decision }),
  });
  assert.ok(decided.status === 303 || decided.status === 302 || decided.status === 200, `the decision is answered ${decided.status}`);
}

// isVideo checks a result, and the bytes that its download gives.
export async function isVideo(result) {
  assert.equal(result.isError ?? false, false, JSON.stringify(result.structuredContent));
  const video = result.structuredContent;
  assert.equal(video.status ?? 'completed', 'completed');
  assert.equal(video.watermark_applied, true);
  assert.equal(video.frame_count, 30);
  assert.deepEqual([video.width, video.height], [960, 720]);
  const link = result.content.find((block) => block.type === 'resource_link');
  assert.equal(link.uri, video.video_uri);
  const bytes = Buffer.from(await (await fetch(video.download_url)).arrayBuffer());
  assert.equal(bytes.length, video.size_bytes);
  assert.equal(createHash('sha256').update(bytes).digest('hex'), video.sha256);
  return video;
}

export function isPNG(contents) {
  assert.equal(contents[0].mimeType, 'image/png');
  assert.equal(Buffer.from(contents[0].blob, 'base64').subarray(1, 4).toString(), 'PNG');
}

// previewOf is the preview that a request for a decision names.
export function previewOf(message) {
  const uri = /vidforge:\/\/renders\/task_[a-z2-7]{26}\/watermark-preview\.png/.exec(message)?.[0];
  assert.ok(uri, message);
  return uri;
}

// untilLine runs this script in another process until it prints a line that
// begins with prefix, and kills it then. It returns the rest of the line.
export async function untilLine(prefix, ...more) {
  const child = spawn(process.execPath, [process.argv[1], process.argv[2], clip, ...more], { stdio: ['ignore', 'pipe', 'inherit'] });
  let text = '';
  const line = await new Promise((resolve, reject) => {
    child.stdout.on('data', (data) => {
      text += data;
      const found = text.split('\n').slice(0, -1).find((l) => l.startsWith(prefix));
      if (found) resolve(found.slice(prefix.length));
    });
    child.on('exit', (code) => reject(new Error(`the other process ended with ${code}: ${text}`)));
  });
  const ended = new Promise((resolve) => child.on('exit', resolve));
  child.kill('SIGKILL');
  await ended;
  return line;
}
