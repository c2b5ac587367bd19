// structured-headers, a parser of RFC 9651, reads the header fields of the example axum.
import assert from 'node:assert/strict';
import { parseList } from 'structured-headers';

const url = `http://${process.argv[2]}/`;

for (const [status, remaining] of [[200, 4], [200, 3], [200, 2], [200, 1], [200, 0], [429, 0], [429, 0]]) {
  const response = await fetch(url);
  assert.equal(response.status, status);

  const policy = parseList(response.headers.get('ratelimit-policy'));
  assert.deepEqual(policy, [['default', new Map([['q', 5], ['w', 10]])]]);

  const [[name, parameters], ...others] = parseList(response.headers.get('ratelimit'));
  assert.equal(name, 'default');
  assert.deepEqual(others, []);
  assert.equal(parameters.get('r'), remaining);
  assert.ok(parameters.get('t') >= 1 && parameters.get('t') <= 10, 'the seconds until more is available');

  const retryAfter = response.headers.get('retry-after');
  if (status === 429) {
    assert.match(retryAfter, /^[1-9][0-9]*$/);
    assert.ok(Number(retryAfter) >= parameters.get('t'), 'Retry-After is not less than t');
    const problem = await response.json();
    assert.deepEqual([problem.status, problem['violated-policies']], [429, ['default']]);
  } else {
    assert.equal(retryAfter, null);
  }
}
console.log('parsed on 200 and on 429');
