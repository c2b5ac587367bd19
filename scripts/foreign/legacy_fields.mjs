// ratelimit-header-parser reads what the example github sends. (It knows the drafts up to the seventh only, so that it
// is given the legacy fields, without the later draft's.)
import assert from 'node:assert/strict';
import { parseRateLimit } from 'ratelimit-header-parser';

const url = `http://${process.argv[2]}/`;

for (const [headers, limit] of [[{}, 60], [{ authorization: 'Bearer secret-of-alice' }, 5000]]) {
  for (const used of [1, 2]) {
    const response = await fetch(url, { headers });
    const read = parseRateLimit(response);
    assert.deepEqual([read.limit, read.used, read.remaining], [limit, used, limit - used]);
    const seconds = (read.reset - Date.now()) / 1000;
    assert.ok(seconds > 3500 && seconds <= 3601, `it resets within the hour: ${seconds} s`);
  }
}
console.log('read for both tiers');
