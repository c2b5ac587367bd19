/// The key index of a limit without part in an operation. The script receives 0 for it.
pub(crate) const NO_KEY: u16 = u16::MAX;

/// Encodes the steps of a batch. Equal consecutive steps become one step with a repeat count.
pub(crate) struct StepEncoder {
    encoded: Vec<u8>,
    /// The own numbers of the steps alone.
    numbers: Vec<u8>,
    previous: Vec<u16>,
    step: Vec<u16>,
    /// Where the own numbers of the last step start in `numbers`.
    last_numbers: usize,
    count: usize,
    /// Whether each step is on the key of its index, and not repeated.
    in_order: bool,
}

impl StepEncoder {
    pub(crate) fn new(limits: usize) -> Self {
        Self {
            encoded: Vec::new(),
            numbers: Vec::new(),
            previous: Vec::new(),
            step: Vec::with_capacity(limits + 1),
            last_numbers: 0,
            count: 0,
            in_order: true,
        }
    }

    /// Adds a step: the index of its template, for each limit the index of its key, and its own numbers.
    pub(crate) fn push(&mut self, template: usize, key_indices: &[u16], numbers: &[f64]) {
        self.step.clear();
        self.step.push(u16::try_from(template + 1).unwrap_or(u16::MAX));
        // `NO_KEY` wraps to 0.
        self.step.extend(key_indices.iter().map(|index| index.wrapping_add(1)));
        let start = self.numbers.len();
        for number in numbers {
            push_f64(*number, &mut self.numbers);
        }
        if self.step == self.previous && self.numbers[self.last_numbers..start] == self.numbers[start..] {
            self.numbers.truncate(start);
            // A batch has fewer operations than a `u16` counts.
            let repeats = self.encoded.len() - (start - self.last_numbers) - 2;
            let count = u16::from_le_bytes([self.encoded[repeats], self.encoded[repeats + 1]]) + 1;
            self.encoded[repeats..repeats + 2].copy_from_slice(&count.to_le_bytes());
            self.in_order = false;
            return;
        }
        for number in self.step.iter().chain(&[1]) {
            self.encoded.extend_from_slice(&number.to_le_bytes());
        }
        self.encoded.extend_from_slice(&self.numbers[start..]);
        self.last_numbers = start;
        // A key may be known to the batch without a step: an update that carries nothing.
        self.in_order &= key_indices.first().is_some_and(|key| usize::from(*key) == self.count);
        self.count += 1;
        self.previous.clone_from(&self.step);
    }

    /// Returns the number of encoded steps, without repeats, and the steps. If each of these keys has one step, in the order
    /// of the keys: 0, and the own numbers of the steps.
    pub(crate) fn encoded(&self, keys: usize) -> (usize, &[u8]) {
        let is_plain = self.previous.len() == 2 && self.count == keys && self.in_order;
        if is_plain { (0, &self.numbers) } else { (self.count, &self.encoded) }
    }
}

pub(crate) fn push_u16(number: usize, output: &mut Vec<u8>) {
    output.extend_from_slice(&u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes());
}

pub(crate) fn push_f64(number: f64, output: &mut Vec<u8>) {
    output.extend_from_slice(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of steps, and the length of the encoded ones, if the steps are on these keys of each limit. Each
    /// step has a number of its own, which is the last key's.
    fn encoded(steps: &[&[u16]], keys: usize) -> (usize, usize) {
        let mut encoder = StepEncoder::new(steps[0].len());
        for step in steps {
            encoder.push(0, step, &step.last().map(|key| f64::from(*key)).into_iter().collect::<Vec<_>>());
        }
        let (count, steps) = encoder.encoded(keys);
        (count, steps.len())
    }

    #[test]
    fn steps_do_not_travel_if_each_key_has_one() {
        assert_eq!(encoded(&[&[0], &[1], &[2]], 3), (0, 24), "the own numbers");
        assert_eq!(encoded(&[&[0], &[1], &[0]], 2), (3, 42), "a key has two steps");
        assert_eq!(encoded(&[&[0], &[1], &[1]], 2), (2, 28), "a step is repeated");
        assert_eq!(encoded(&[&[0], &[NO_KEY]], 1), (2, 28), "a step without a key");
        assert_eq!(encoded(&[&[0, 1], &[2, 3]], 4), (2, 32), "several limits");
        assert_eq!(encoded(&[&[0, 1], &[2, 1]], 2), (2, 32), "several limits");
        assert_eq!(encoded(&[&[1], &[0]], 2), (2, 28), "in another order");
    }

    /// As many steps as keys, of which one has none.
    #[test]
    fn two_steps_on_one_key_are_not_those_of_two_keys() {
        let mut encoder = StepEncoder::new(1);
        for number in [1.0, 2.0] {
            encoder.push(0, &[0], &[number]);
        }
        assert_eq!(encoder.encoded(2).0, 2);
    }

    #[test]
    fn steps_with_other_numbers_are_no_repeats() {
        let mut encoder = StepEncoder::new(1);
        for number in [1.0, 1.0, 2.0] {
            encoder.push(0, &[0], &[number]);
        }
        let step = |repeats: u16, number: f64| {
            [&[1_u16, 1, repeats].map(u16::to_le_bytes).concat()[..], &number.to_le_bytes()].concat()
        };
        assert_eq!(encoder.encoded(1), (2, &[step(2, 1.0), step(1, 2.0)].concat()[..]));
    }
}
