// ratelimit-header-parser reads the header fields of the example github. The parser knows drafts 0 to 7 of the
// RateLimit header fields only, so the example sends the legacy fields alone.
import assert from 'node:assert/strict';
import { parseRateLimit } from 'ratelimit-header-parser';

const url = `http://${process.argv[2]}/`;

for (const [headers, limit] of [[{}, 60], [{ authorization: 'Bearer secret-of-alice' }, 5000]]) {
  for (const used of [1, 2]) {
    const response = await fetch(url, { headers });
    const read = parseRateLimit(response);
    assert.deepEqual([read.limit, read.used, read.remaining], [limit, used, limit - used]);
    const seconds = (read.reset - Date.now()) / 1000;
    assert.ok(seconds > 3500 && seconds <= 3601, `the reset is within the hour: ${seconds} s`);
  }
}
console.log('parsed for both tiers');
