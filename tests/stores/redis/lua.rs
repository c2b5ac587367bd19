//! The scripts under Lua 5.4, which Dragonfly runs: replies equal those of Redis' Lua 5.1 byte by byte.
//!
//! A stub of a few lines implements the Redis commands that the scripts call.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use bb8_redis::redis;

use crate::random::Random;
use crate::server::Server;

#[allow(dead_code, reason = "the crate uses the rest")]
#[path = "../../../src/store/redis/script/fields.rs"]
mod fields;

/// The Redis stub: strings, lists, and `struct` by `string.pack`. Runs a script on each input line, and prints the reply
/// and the work: the numbers of commands, of bytes that they transfer, and of Lua instructions.
const STUB: &str = r"
local store = {}
struct = {
  pack = string.pack,
  unpack = string.unpack,
}
local commands = {
  GET = function(key) return store[key] or false end,
  MGET = function(...)
    local values = {}
    for i, key in ipairs({ ... }) do values[i] = store[key] or false end
    return values
  end,
  EXISTS = function(key) return store[key] and 1 or 0 end,
  SET = function(key, value, ...)
    local options = { ... }
    if options[#options] == 'NX' and store[key] then return false end
    store[key] = value
    return { ok = 'OK' }
  end,
  PSETEX = function(key, ttl, value) assert(ttl >= 1 and ttl % 1 == 0) store[key] = value end,
  PEXPIRE = function(key, ttl) assert(ttl >= 1 and ttl % 1 == 0) end,
  DEL = function(key) store[key] = nil end,
  -- A list is a table with the position of its first element.
  LINDEX = function(key, index) return store[key] and store[key].values[store[key].first + index] or false end,
  LRANGE = function(key, from, till)
    local list = store[key]
    return list and table.move(list.values, list.first + from, list.first + till, 1, {}) or {}
  end,
  LSET = function(key, index, value)
    local list = store[key]
    local position = index < 0 and #list.values + 1 + index or list.first + index
    assert(list.values[position])
    list.values[position] = value
  end,
  LTRIM = function(key, from, till)
    local list = store[key]
    list.first = from < 0 and #list.values + 1 + from or list.first + from
    assert(till == -1 and list.values[list.first])
  end,
  RPUSH = function(key, ...)
    store[key] = store[key] or { first = 1, values = {} }
    for _, value in ipairs({ ... }) do table.insert(store[key].values, value) end
  end,
}
local commands_called, bytes, instructions = 0, 0, 0
local function size(value)
  if type(value) ~= 'table' then return #tostring(value) end
  local sum = 0
  for _, element in ipairs(value) do sum = sum + size(element) end
  return sum
end
local function call(name, ...)
  local reply = commands[name](...)
  commands_called, bytes = commands_called + 1, bytes + size({ ... }) + size(reply)
  return reply
end
redis = { call = call, pcall = call }
local script = assert(load(io.read(tonumber(io.read('l')))))
for line in io.lines() do
  local keys, input = line:match('^(%d+) (%x+)$')
  KEYS = {}
  for i = 1, tonumber(keys) do KEYS[i] = 'key' .. i end
  ARGV = { (input:gsub('%x%x', function(byte) return string.char(tonumber(byte, 16)) end)) }
  commands_called, bytes, instructions = 0, 0, 0
  debug.sethook(function() instructions = instructions + 100 end, '', 100)
  local reply = script()
  debug.sethook()
  reply = reply:gsub('.', function(char) return ('%02x'):format(char:byte()) end)
  print(('%s %d %d %d'):format(reply, commands_called, bytes, instructions))
end
";

/// The fast paths of a bucket.
pub(crate) const FAST_BUCKET: &str = concat!(
    include_str!("../../../src/algorithm/bucket/bucket_fast.lua"),
    include_str!("../../../src/algorithm/fast_holds.lua")
);

/// The script of a limiter with one limit, assembled as by the store.
pub(crate) fn script(kernel: &str, short: Option<&str>) -> String {
    assemble(&[kernel], short, false)
}

/// The script of a limiter with these limits, assembled as by the store.
pub(crate) fn assemble(kernels: &[&str], short: Option<&str>, leases: bool) -> String {
    let mut parts = vec![include_str!("../../../src/store/redis/script/prelude.lua").to_owned()];
    if let Some(short) = short {
        parts.push(format!("local LIMITS = {}\n", kernels.len()));
        parts.extend([short, include_str!("../../../src/store/redis/script/fast_reply.lua")].map(str::to_owned));
    }
    parts.push("local kernels = {}\n".to_owned());
    for (index, kernel) in (1..).zip(kernels) {
        parts.push(format!("kernels[{index}] = (function()\n{kernel}\nend)()\n"));
    }
    parts.push(include_str!("../../../src/store/redis/script/read.lua").to_owned());
    parts.push(include_str!("../../../src/store/redis/script/holds.lua").to_owned());
    if leases {
        parts.push(include_str!("../../../src/store/redis/script/lease.lua").to_owned());
    }
    let operations = include_str!("../../../src/store/redis/script/operations.lua");
    parts.push("local run_decision, operate\nif operation_count > 0 then\n".to_owned());
    parts.push(format!("run_decision, operate = (function()\n{operations}end)()\nend\n"));
    parts.push(include_str!("../../../src/store/redis/script/driver.lua").to_owned());
    let script = parts.concat();
    fields::resolve(&script)
}

/// One batch of decisions at `now`: (key index, cost) each, with parameters by `params`.
fn batch(now: f64, fast_path: u16, keys: u16, decisions: &[(u16, u64)], params: &dyn Fn(u64) -> Vec<f64>) -> Vec<u8> {
    // No latest start.
    let mut input = [now.to_le_bytes(), [0; 8]].concat();
    let numbers = |numbers: &[u16], input: &mut Vec<u8>| {
        input.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    };
    let count = u16::try_from(decisions.len()).expect("few");
    numbers(&[fast_path, count, count, keys], &mut input);
    for &(_, cost) in decisions {
        numbers(&[0, 0], &mut input);
        #[allow(clippy::cast_precision_loss, reason = "small")]
        let cost_number = cost as f64;
        let mut doubles = vec![0.0, -1.0];
        doubles.extend(params(cost));
        // No shadow limit.
        doubles.extend([0.0, cost_number]);
        input.extend(doubles.iter().flat_map(|double| double.to_le_bytes()));
    }
    for (index, &(key, _)) in (1..).zip(decisions) {
        numbers(&[index, key, 1], &mut input);
    }
    input
}

/// One batch of `repeats` decisions of one cost on each key, with one template, as the client encodes it.
pub(crate) fn one_template(
    now: f64,
    short: bool,
    keys: u16,
    (cost, repeats): (u64, u16),
    params: &dyn Fn(u64) -> Vec<f64>,
) -> Vec<u8> {
    // No latest start.
    let mut input = [now.to_le_bytes(), [0; 8]].concat();
    let numbers = |numbers: &[u16], input: &mut Vec<u8>| {
        input.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    };
    // The operations do not travel if each key has one.
    let operations = if repeats == 1 { 0 } else { keys };
    numbers(&[u16::from(short), 1, operations, keys, 0, 0], &mut input);
    #[allow(clippy::cast_precision_loss, reason = "small")]
    let cost_number = cost as f64;
    let doubles = [vec![0.0, -1.0], params(cost), vec![0.0, cost_number]].concat();
    input.extend(doubles.iter().flat_map(|double| double.to_le_bytes()));
    for key in 1..=operations {
        numbers(&[1, key, repeats], &mut input);
    }
    input
}

/// A reply under Lua 5.4, and the work of the call.
pub(crate) struct Reply {
    /// In hexadecimal digits.
    pub(crate) digits: String,
    pub(crate) commands: u64,
    /// The bytes of all arguments and results of the commands.
    pub(crate) bytes: u64,
    /// The number of Lua instructions, rounded down to hundreds.
    pub(crate) instructions: u64,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("written");
        text
    })
}

/// Runs the script under Lua 5.4 on each input, on an empty store.
pub(crate) fn run(script: &str, inputs: &[Vec<u8>], keys: usize) -> Vec<Reply> {
    run_each(script, &inputs.iter().map(|input| (input.clone(), keys)).collect::<Vec<_>>())
}

/// Runs the script under Lua 5.4 on each input and its number of keys, on an empty store.
fn run_each(script: &str, inputs: &[(Vec<u8>, usize)]) -> Vec<Reply> {
    let lua = Command::new("lua5.4").arg("-e").arg(STUB).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut lua =
        lua.unwrap_or_else(|error| panic!("this test needs lua5.4 (Debian: apt-get install -y lua5.4): {error}"));
    let mut stdin = lua.stdin.take().expect("piped");
    let calls: Vec<_> = inputs.iter().map(|(input, keys)| format!("{keys} {}\n", hex(input))).collect();
    let all = format!("{}\n{script}{}", script.len(), calls.concat());
    let writer = std::thread::spawn(move || stdin.write_all(all.as_bytes()));
    let output = lua.wait_with_output().expect("the end of lua5.4");
    writer.join().expect("a writer").expect("written");
    assert!(output.status.success(), "lua5.4 failed");
    let parse = |line: &str| {
        let (reply, work) = line.split_once(' ')?;
        let mut work = work.split(' ').map(|number| number.parse().ok());
        Some(Reply {
            digits: reply.to_owned(),
            commands: work.next()??,
            bytes: work.next()??,
            instructions: work.next()??,
        })
    };
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| parse(line).expect("a reply and three numbers")).collect()
}

fn check_equal_replies(kernel: &str, short: Option<&str>, params: &dyn Fn(u64) -> Vec<f64>) {
    let text = script(kernel, short);
    let mut now = 1_790_000_000_000_000.0;
    let batches: Vec<_> = (0..60_u16)
        .map(|step| {
            now += [0.0, 1.0, 70_000.0, 900_000.0, 4_000_000.0][usize::from(step % 5)];
            let decisions = [(1, 1), (2, 2), (1, 1), (3, 1 + u64::from(step % 3))];
            // Every other batch takes the kernel's fast path, or that of any kernel.
            let fast_path = (1 - step % 2) * if short.is_some() { 1 } else { 3 };
            batch(now, fast_path, 3, &decisions, params)
        })
        .collect();

    let server = Server::start();
    let client = redis::Client::open(server.address()).expect("an address");
    let mut connection = client.get_connection().expect("a connection");
    let under_redis: Vec<Vec<u8>> = batches
        .iter()
        .map(|input| {
            let mut call = redis::cmd("EVAL");
            call.arg(&text).arg(3).arg(&["key1", "key2", "key3"]).arg(&input[..]);
            call.query(&mut connection).expect("a reply")
        })
        .collect();

    let replies = run(&text, &batches, 3);
    assert_eq!(replies.len(), under_redis.len());
    for (step, (here, there)) in replies.iter().zip(&under_redis).enumerate() {
        assert_eq!(here.digits, hex(there), "batch {step}");
    }
}

#[test]
#[allow(clippy::cast_precision_loss, reason = "small")]
fn bucket_replies_equal_under_both_lua_versions() {
    // Five per three seconds: 5 tokens of 3,000,000 ticks each, bursts of five.
    let params = |cost: u64| {
        let span = |count: u64| (count * 3_000_000 / 5) as f64;
        vec![1.0, 600_000.0, span(5 - cost), 0.0, span(cost), 0.0, span(5), (6 - cost) as f64, 0.0]
    };
    let kernel = include_str!("../../../src/algorithm/bucket/bucket.lua");
    check_equal_replies(kernel, Some(FAST_BUCKET), &params);
    check_equal_replies(kernel, None, &params);
}

#[test]
#[allow(clippy::cast_precision_loss, reason = "small")]
fn window_and_log_replies_equal_under_both_lua_versions() {
    let fixed = |cost: u64| vec![5.0, 3_000_000.0, cost as f64, 0.0, 0.0, 0.0, 0.0, 0.0];
    let kernel = include_str!("../../../src/algorithm/fixed_window.lua");
    check_equal_replies(kernel, Some(include_str!("../../../src/algorithm/fixed_window_fast.lua")), &fixed);
    let sliding = |cost: u64| vec![5.0, 300_000.0, 10.0, cost as f64, 1.0];
    check_equal_replies(include_str!("../../../src/algorithm/sliding_window/sliding_window.lua"), None, &sliding);
    let log = |cost: u64| vec![5.0, 3_000_000.0, cost as f64];
    check_equal_replies(include_str!("../../../src/algorithm/sliding_log.lua"), None, &log);
}

/// Random holds and updates of some sessions, and the two replies to them.
struct HoldsOfSessions<'a> {
    random: Random,
    /// The number of the words of a state.
    words: usize,
    params: &'a dyn Fn(u64) -> Vec<f64>,
    now: u64,
    /// The id, the key, and the sums of the held, released and charged costs.
    sessions: Vec<(u64, u16, [u64; 3])>,
    last_id: u64,
    /// For each operation of the last batch, and each of its repeats, whether it is a hold.
    kinds: Vec<bool>,
}

/// Whether it is a hold, the key, the cost, the repeats, and the own numbers.
type HoldOrUpdate = (bool, u16, u64, u16, Vec<f64>);

impl HoldsOfSessions<'_> {
    /// A hold of a new session.
    fn new_hold(&mut self, key: u16, cost: u64, repeats: u16) -> HoldOrUpdate {
        // A session may be renamed.
        self.last_id += 10;
        self.sessions.push((self.last_id, key, [cost * u64::from(repeats), 0, 0]));
        (true, key, cost, repeats, vec![-number(self.last_id)])
    }

    fn operation(&mut self) -> HoldOrUpdate {
        let (known, cost) = (self.random.index(self.sessions.len() + 1), self.random.between(1, 3));
        let repeats = if self.random.percent(20) { 3 } else { 1 };
        if known == self.sessions.len() || self.random.percent(20) {
            let key = u16::try_from(self.random.between(1, 3)).expect("small");
            return self.new_hold(key, cost, repeats);
        }
        let (id, key, mut sums) = self.sessions.remove(known);
        let is_hold = self.random.percent(45);
        let (mut ends, mut numbers) = (0, vec![number(id)]);
        if is_hold {
            sums[0] += cost * u64::from(repeats);
        } else {
            // An update ends its session, or renames it and releases what is held beyond a part.
            ends = if self.random.percent(10) { 2 } else { self.random.choose(&[0, 1, 1]) };
            sums[1] += self.random.below((sums[0] + 2).saturating_sub(sums[1]));
            sums[2] += if self.words == 1 { 0 } else { self.random.below(3) };
            let held = match ends {
                0 => sums[0].saturating_sub(sums[1]),
                1 => 0,
                _ => self.random.below(4),
            };
            numbers.extend([sums[1], sums[2], ends, held].map(number));
        }
        if ends != 1 {
            self.sessions.push((id + u64::from(ends == 2), key, sums));
        }
        (is_hold, key, if is_hold { cost } else { 0 }, if is_hold { repeats } else { 1 }, numbers)
    }

    /// Returns a batch for the driver, and for the fast path, and the number of its keys.
    fn batch(&mut self) -> ([Vec<u8>; 2], u16) {
        self.now += self.random.choose(&[0, 1, 20_000, 70_000, 400_000]);
        let mut operations: Vec<_> = (0..self.random.between(1, 5)).map(|_| self.operation()).collect();
        let keys = operations.iter().map(|operation| operation.1).max().expect("an operation");
        for key in 1..keys {
            // The client asks for no fast path if a key has no operation.
            if operations.iter().all(|operation| operation.1 != key) {
                operations.push(self.new_hold(key, 1, 1));
            }
        }
        let (mut templates, mut steps) = (Vec::new(), Vec::new());
        self.kinds.clear();
        for (index, (is_hold, key, cost, repeats, numbers)) in (1..).zip(&operations) {
            self.kinds.extend((0..*repeats).map(|_| *is_hold));
            let expiry = number(self.random.choose(&[900_000, 5_000_000, 9_000_000]));
            // The codes of a hold and of an update, and the limit.
            let (codes, args) = if *is_hold { ([2, 0], [0.0, expiry]) } else { ([7, 1], [expiry, 0.0]) };
            let doubles = [&args[..], &(self.params)(*cost), &[0.0, number(*cost)]].concat();
            templates.extend([shorts(&codes), longs(&doubles)].concat());
            steps.extend([shorts(&[index, *key, *repeats]), longs(numbers)].concat());
        }
        let count = u16::try_from(operations.len()).expect("few");
        let batch = [0, 2].map(|path| {
            let head = [longs(&[number(self.now), 0.0]), shorts(&[path, count, count, keys])].concat();
            [&head[..], &templates, &steps].concat()
        });
        (batch, keys)
    }

    /// The words of a value, without the key's expiry. An idle state is zeros.
    fn stored(&self, key: &str, connection: &mut redis::Connection) -> Vec<f64> {
        let value: Vec<u8> = redis::cmd("GET").arg(key).query(connection).expect("a value");
        let mut words = doubles(&value);
        if !words.is_empty() {
            words.remove(self.words);
            if words[0] <= number(self.now) {
                words[..self.words].fill(0.0);
            }
        }
        words
    }

    /// The results of a reply without flags, and the held costs and the state of each key.
    fn seen(&self, reply: &[u8]) -> (Vec<f64>, Vec<Vec<f64>>) {
        let short = |at: usize| usize::from(u16::from_le_bytes([reply[at], reply[at + 1]]));
        let (is_fast, sent, keys) = (short(8) == 1, short(10), short(12));
        let all = doubles(&reply[14..14 + sent * 8]);
        let (mut results, mut at) = (Vec::new(), 0);
        for is_hold in &self.kinds {
            let own = if *is_hold { 1 } else { 2 };
            results.extend((0..own).map(|index| all.get(at + index).copied().unwrap_or(0.0)));
            at += if *is_hold && !is_fast { 2 } else { own };
        }
        let values = 14 + sent * 8;
        let mut start = values + if is_fast { 0 } else { 2 * keys };
        let states = (0..keys).map(|key| {
            let length = if is_fast { (reply.len() - values) / keys } else { short(values + 2 * key) };
            let value = &reply[start..start + length];
            start += length;
            let mut words = doubles(value);
            if length % 8 == 0 {
                // No held costs.
                words.insert(0, 0.0);
            }
            words.resize(1 + self.words, 0.0);
            if words[1] <= number(self.now) {
                words[1..].fill(0.0);
            }
            words
        });
        (results, states.collect())
    }
}

#[allow(clippy::cast_precision_loss, reason = "at most 2^53")]
fn number(number: u64) -> f64 {
    number as f64
}

fn shorts(numbers: &[u16]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn longs(numbers: &[f64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn doubles(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|word| f64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
}

/// The fast path of holds replies and stores as the driver does, on keys with holds of several sessions, and it replies
/// equally under both Lua versions.
fn check_fast_holds(kernel: &str, fast_path: &str, words: usize, params: &dyn Fn(u64) -> Vec<f64>) {
    let text = script(kernel, Some(fast_path));
    let server = Server::start();
    let mut connection = server.connect();
    let random = Random::new(7);
    let now = 1_790_000_000_000_000;
    let mut holds = HoldsOfSessions { random, words, params, now, sessions: Vec::new(), last_id: 0, kinds: Vec::new() };
    let (mut fast, mut inputs, mut replies) = (0, Vec::new(), Vec::new());
    let rounds = 400;
    for round in 0..rounds {
        if holds.sessions.len() > 12 {
            holds.sessions.truncate(4);
        }
        let (batch, count) = holds.batch();
        let seen = [0, 1].map(|path| {
            let keys: Vec<_> = (1..=count).map(|key| format!("{}{key}", ["driver", "key"][path])).collect();
            let mut call = redis::cmd("EVAL");
            call.arg(&text).arg(count).arg(&keys).arg(&batch[path][..]);
            let reply: Vec<u8> = call.query(&mut connection).expect("a reply");
            let seen = holds.seen(&reply);
            if path == 1 {
                fast += usize::from(reply[8] == 1);
                inputs.push((batch[path].clone(), usize::from(count)));
                replies.push(reply);
            }
            let stored: Vec<_> = keys.iter().map(|key| holds.stored(key, &mut connection)).collect();
            (seen, stored)
        });
        assert_eq!(seen[0], seen[1], "batch {round}");
    }
    assert!(fast > rounds / 4 && fast < rounds, "{fast} of {rounds} batches took the fast path");
    for (round, (here, there)) in run_each(&text, &inputs).iter().zip(&replies).enumerate() {
        assert_eq!(here.digits, hex(there), "batch {round}");
    }
}

/// Forty per ten seconds.
fn forty(cost: u64) -> Vec<f64> {
    let span = |count: u64| number(count * 250_000);
    vec![1.0, 250_000.0, span(40 - cost), 0.0, span(cost), 0.0, span(40), number(41 - cost), 0.0]
}

/// Seven per second, and a burst of 35: spans have fractions.
fn sevenths(cost: u64) -> Vec<f64> {
    let span = |count: u64| [number(count * 1_000_000 / 7), number(count * 1_000_000 % 7)];
    let spans = [span(35 - cost), span(cost)].concat();
    [&[7.0, 1_000_000.0], &spans[..], &[5_000_000.0, number(36 - cost), 0.0]].concat()
}

const BUCKET: &str = include_str!("../../../src/algorithm/bucket/bucket.lua");

#[test]
fn fast_path_of_holds_equals_the_driver() {
    check_fast_holds(BUCKET, FAST_BUCKET, 5, &forty);
    check_fast_holds(BUCKET, FAST_BUCKET, 5, &sevenths);
    let in_flight = concat!(
        include_str!("../../../src/algorithm/in_flight_fast.lua"),
        include_str!("../../../src/algorithm/fast_holds.lua")
    );
    check_fast_holds(include_str!("../../../src/algorithm/in_flight.lua"), in_flight, 1, &|cost| {
        vec![30.0, number(cost)]
    });
}

/// The control.
#[test]
fn mistakes_in_the_fast_path_of_holds_are_found() {
    let mistakes = [
        ("held + allowed * cost", "held + cost"),
        ("sum_released - own_released", "sum_released"),
        ("sum_charged - own_charged", "sum_charged"),
        ("due > now and", ""),
        ("if released > own_held then", "if false then"),
        ("(repeats > 1 or ends == 2)", "repeats > 1"),
        ("state_tokens, state_ticks, charged_at = tokens, ticks, now", ""),
        ("fraction = fraction - over", ""),
        ("if expiry < due then due = expiry end", ""),
        ("own = value:sub(HELD_LENGTH + 1, own_at - 1) .. own", "own = own"),
    ];
    for (code, mistake) in mistakes {
        let text = FAST_BUCKET.replace(code, mistake);
        assert_ne!(text, FAST_BUCKET, "{code}");
        let found = std::panic::catch_unwind(|| check_fast_holds(BUCKET, &text, 5, &sevenths));
        assert!(found.is_err(), "the mistake is not found: {code}");
    }
}
