//! The formats between the client and the server: RESP, and the input of the script (`read.lua`).

use std::ops::Range;

/// The arguments of one command, as ranges of a buffer.
pub(super) type Arguments = Vec<Range<usize>>;

/// Reads a command, an array of bulk strings. Returns its arguments and its length, or `None` if it is incomplete.
pub(super) fn read_command(buffer: &[u8]) -> Option<(Arguments, usize)> {
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

pub(super) fn bulk_string(bytes: &[u8]) -> Vec<u8> {
    let mut reply = format!("${}\r\n", bytes.len()).into_bytes();
    reply.extend_from_slice(bytes);
    reply.extend_from_slice(b"\r\n");
    reply
}

/// The input of the script for limits with the kernel `fixed_window2`.
pub(super) struct Input {
    /// In microseconds; 0 for no limit.
    pub(super) latest_start: f64,
    pub(super) is_fast: bool,
    /// For each limit the number of its keys.
    pub(super) key_counts: Vec<usize>,
    pub(super) templates: Vec<Template>,
    pub(super) steps: Vec<Step>,
}

pub(super) struct Template {
    pub(super) operation: u16,
    /// The index of the limit; `None` for all limits.
    pub(super) limit: Option<usize>,
    pub(super) arg1: u64,
    pub(super) arg2: f64,
    /// By limit.
    pub(super) params: Vec<Option<Params>>,
    pub(super) ids: Vec<f64>,
}

#[derive(Clone, Copy)]
pub(super) struct Params {
    pub(super) limit: u64,
    pub(super) period: u64,
    pub(super) cost: u64,
}

pub(super) struct Step {
    pub(super) template: usize,
    /// For each limit the index of its key.
    pub(super) keys: Vec<Option<usize>>,
    pub(super) repeats: u16,
}

struct Reader<'a>(&'a [u8]);

impl Input {
    pub(super) const ACQUIRE: u16 = 0;
    pub(super) const PEEK: u16 = 1;
    pub(super) const HOLD: u16 = 2;
    pub(super) const CHARGE: u16 = 3;
    pub(super) const UPDATE: u16 = 7;

    pub(super) fn read(bytes: &[u8], limits: usize) -> Self {
        let mut input = Reader(bytes);
        assert_eq!(input.f64().to_bits(), 0, "the client sends no time of its own");
        let latest_start = input.f64();
        let is_fast = input.u16() == 1;
        let (templates, steps) = (input.u16(), input.u16());
        let key_counts = (0..limits).map(|_| usize::from(input.u16())).collect();
        let templates = (0..templates).map(|_| Template::read(&mut input, limits)).collect();
        let steps = (0..steps)
            .map(|_| Step {
                template: usize::from(input.u16()) - 1,
                keys: (0..limits).map(|_| usize::from(input.u16()).checked_sub(1)).collect(),
                repeats: input.u16(),
            })
            .collect();
        assert!(input.0.is_empty(), "the input ends with the operations");
        Self { latest_start, is_fast, key_counts, templates, steps }
    }
}

impl Template {
    fn read(input: &mut Reader<'_>, limits: usize) -> Self {
        let operation = input.u16();
        let limit = usize::from(input.u16()).checked_sub(1);
        let (arg1, arg2) = (input.u64(), input.f64());
        let params = (0..limits)
            .map(|index| {
                limit.is_none_or(|limit| limit == index).then(|| {
                    let [limit, period, cost, aligned, shadow, own_cost] = [(); 6].map(|()| input.u64());
                    assert_eq!((aligned, shadow, own_cost), (0, 0, cost));
                    Params { limit, period, cost }
                })
            })
            .collect();
        let ids = match operation {
            Input::HOLD => limits,
            Input::UPDATE => 5,
            Input::ACQUIRE | Input::PEEK | Input::CHARGE => 0,
            other => panic!("the operation {other} is not simulated"),
        };
        let ids = (0..ids).map(|_| input.f64()).collect();
        Self { operation, limit, arg1, arg2, params, ids }
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
