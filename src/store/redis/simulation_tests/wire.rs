//! The formats between the client and the server: RESP, and the input of the script (`read.lua`).

use std::ops::Range;

use super::quota::Quota;

/// The arguments of one command, as ranges of a buffer.
pub(crate) type Arguments = Vec<Range<usize>>;

/// Reads a command, an array of bulk strings. Returns its arguments and its length, or `None` if it is incomplete.
pub(crate) fn read_command(buffer: &[u8]) -> Option<(Arguments, usize)> {
    let (count, mut at) = read_header(buffer, 0, b'*')?;
    let mut arguments = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, start) = read_header(buffer, at, b'$')?;
        at = start + length + 2;
        if buffer.len() < at {
            return None;
        }
        arguments.push(start..start + length);
    }
    Some((arguments, at))
}

/// Reads a type and a number. Returns the number, and where the line ends.
fn read_header(buffer: &[u8], at: usize, expected: u8) -> Option<(usize, usize)> {
    let line = buffer.get(at..)?;
    let (first, digits) = line.split_first()?;
    assert_eq!(*first, expected, "the client sent no command");
    let mut number = 0;
    for (index, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' => number = number * 10 + usize::from(byte - b'0'),
            _ => return digits.get(index + 1).map(|_| (number, at + index + 3)),
        }
    }
    None
}

pub(crate) fn bulk_string(bytes: &[u8]) -> Vec<u8> {
    let mut reply = format!("${}\r\n", bytes.len()).into_bytes();
    reply.extend_from_slice(bytes);
    reply.extend_from_slice(b"\r\n");
    reply
}

/// The input of the script.
pub(crate) struct Input {
    /// In microseconds; 0 for no limit.
    pub(crate) latest_start: f64,
    pub(crate) is_fast: bool,
    /// For each limit the number of its keys.
    pub(crate) key_counts: Vec<usize>,
    pub(crate) templates: Vec<Template>,
    pub(crate) steps: Vec<Step>,
    /// A template whose parameters are not those of the quotas.
    pub(crate) wrong: Option<String>,
}

#[derive(Clone)]
pub(crate) struct Template {
    pub(crate) operation: u16,
    /// The index of the limit; `None` for all limits.
    pub(crate) limit: Option<usize>,
    pub(crate) arg1: u64,
    pub(crate) arg2: f64,
    /// By limit.
    pub(crate) costs: Vec<Option<u64>>,
    pub(crate) ids: Vec<f64>,
}

pub(crate) struct Step {
    pub(crate) template: usize,
    /// For each limit the index of its key.
    pub(crate) keys: Vec<Option<usize>>,
    pub(crate) repeats: u16,
}

struct Reader<'a>(&'a [u8]);

impl Input {
    pub(crate) const ACQUIRE: u16 = 0;
    pub(crate) const PEEK: u16 = 1;
    pub(crate) const HOLD: u16 = 2;
    pub(crate) const CHARGE: u16 = 3;
    pub(crate) const UPDATE: u16 = 7;
    pub(crate) const LEASE: u16 = 8;
    pub(crate) const RESERVE: u16 = 9;
    pub(crate) const SETTLE: u16 = 10;
    pub(crate) const ONCE: u16 = 11;

    pub(crate) fn read(bytes: &[u8], quotas: &[Quota]) -> Self {
        let (mut input, limits) = (Reader(bytes), quotas.len());
        assert_eq!(input.f64().to_bits(), 0, "the client sends no time of its own");
        let latest_start = input.f64() * mistake!(DecisionsHaveNoDeadline, 0.0, 1.0);
        let is_fast = input.u16() == 1;
        let (templates, steps) = (input.u16(), input.u16());
        let key_counts: Vec<_> = (0..limits).map(|_| usize::from(input.u16())).collect();
        let mut wrong = None;
        let templates: Vec<_> = (0..templates).map(|_| Template::read(&mut input, quotas, &mut wrong)).collect();
        // Each step gets a template with its own numbers.
        let (shared, mut templates) = (templates, Vec::new());
        let is_plain = steps == 0 && shared.len() == 1;
        assert!(!is_plain || limits == 1, "operations without numbers have one limit");
        let count = if is_plain { key_counts[0] } else { usize::from(steps) };
        let steps = (0..count).map(|index| {
            let (shared, keys, repeats) = if is_plain {
                (&shared[0], vec![Some(index)], 1)
            } else {
                let shared = &shared[usize::from(input.u16()) - 1];
                let keys = (0..limits).map(|_| usize::from(input.u16()).checked_sub(1)).collect();
                (shared, keys, input.u16())
            };
            let ids = (0..shared.id_count(limits)).map(|_| input.f64()).collect();
            templates.push(Template { ids, ..shared.clone() });
            Step { template: index, keys, repeats }
        });
        let steps = steps.collect();
        assert!(input.0.is_empty(), "the input ends with the operations");
        Self { latest_start, is_fast, key_counts, templates, steps, wrong }
    }
}

impl Template {
    fn read(input: &mut Reader<'_>, quotas: &[Quota], wrong: &mut Option<String>) -> Self {
        let operation = input.u16();
        let limit = usize::from(input.u16()).checked_sub(1);
        let (arg1, arg2) = (input.u64(), input.f64());
        let mut costs = vec![None; quotas.len()];
        for (index, quota) in quotas.iter().enumerate() {
            if limit.is_some_and(|limit| limit != index) {
                continue;
            }
            let mut sent: Vec<u64> = (0..quota.parameter_count() + 2).map(|_| input.u64()).collect();
            let cost = sent[sent.len() - 1];
            if mistake!(CostIsSentAsOne) {
                sent.splice(..quota.parameter_count(), quota.parameters(1));
            }
            let mut expected = quota.parameters(cost);
            // No limit is a shadow.
            expected.extend([0, cost]);
            if sent != expected {
                *wrong = Some(format!("limit {index}: {sent:?} instead of {expected:?}"));
            }
            costs[index] = Some(cost);
        }
        Self { operation, limit, arg1, arg2, costs, ids: Vec::new() }
    }

    /// The number of each step's own numbers.
    fn id_count(&self, limits: usize) -> usize {
        match self.operation {
            Input::HOLD => limits,
            Input::UPDATE => 5,
            Input::LEASE => 7,
            Input::RESERVE => limits + 5,
            Input::SETTLE => limits + 1,
            Input::ONCE => 2 * limits + 5,
            Input::ACQUIRE | Input::PEEK | Input::CHARGE => 0,
            other => panic!("the operation {other} is not simulated"),
        }
    }
}

/// The results of operations that failed: see `driver.lua`.
pub(crate) const INVALID_STATE: f64 = -9_007_199_254_740_992.0;
pub(crate) const EXPIRED: f64 = INVALID_STATE + 1.0;
pub(crate) const LATE: f64 = INVALID_STATE + 4.0;
pub(crate) const CONFLICT: f64 = INVALID_STATE + 5.0;
pub(crate) const UNKNOWN_ID: f64 = INVALID_STATE + 7.0;
pub(crate) const ALREADY_SETTLED: f64 = INVALID_STATE + 8.0;
pub(crate) const REPEATED: f64 = 1_099_511_627_776.0;

/// The parts of a reply: see `driver.lua`.
pub(crate) struct BatchReply {
    pub(crate) results: Vec<f64>,
    /// The states before the batch, of keys with held costs once they are used.
    pub(crate) values: Vec<Option<Vec<u8>>>,
    pub(crate) expired: u16,
}

impl BatchReply {
    pub(crate) fn pack(mut self, now: u64, is_fast: bool) -> Vec<u8> {
        let mut bytes = to_f64(now).to_le_bytes().to_vec();
        if is_fast && self.results.iter().all(|result| *result == 0.0) {
            self.results.clear();
        }
        let count = |number: usize| u16::try_from(number).expect("a small batch");
        let flags = if is_fast { 1 } else { self.expired * 2 };
        for number in [flags, count(self.results.len()), count(self.values.len())] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for result in &self.results {
            bytes.extend_from_slice(&result.to_le_bytes());
        }
        let lengths = self.values.iter().map(|value| value.as_ref().map_or(0, Vec::len));
        if is_fast {
            // Equal lengths do not travel. The value of a never-seen key is zeros.
            let length = lengths.max().unwrap_or(0);
            for value in &mut self.values {
                value.get_or_insert_default().resize(length, 0);
            }
        } else {
            bytes.extend(lengths.flat_map(|length| count(length).to_le_bytes()));
        }
        for value in self.values.iter().flatten() {
            bytes.extend_from_slice(value);
        }
        bytes
    }
}

impl Reader<'_> {
    fn u16(&mut self) -> u16 {
        let (bytes, rest) = self.0.split_first_chunk().expect("the input is complete");
        self.0 = rest;
        u16::from_le_bytes(*bytes)
    }

    fn f64(&mut self) -> f64 {
        let (bytes, rest) = self.0.split_first_chunk().expect("the input is complete");
        self.0 = rest;
        f64::from_le_bytes(*bytes)
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number of at most 2^53")]
    fn u64(&mut self) -> u64 {
        self.f64() as u64
    }
}

#[allow(clippy::cast_precision_loss, reason = "at most 2^53")]
pub(crate) fn to_f64(number: u64) -> f64 {
    number as f64
}
