/// The key index of a limit without part in an operation. The script receives 0 for it.
pub(crate) const NO_KEY: u16 = u16::MAX;

/// Encodes the steps of a batch. Equal consecutive steps become one step with a repeat count.
pub(crate) struct StepEncoder {
    limits: usize,
    /// Of each step the number of its template, and for each limit the number of its key.
    headers: Vec<u16>,
    /// The own numbers of all steps, and where those of each step end.
    numbers: Vec<f64>,
    ends: Vec<usize>,
    repeats: Vec<u16>,
}

impl StepEncoder {
    pub(crate) fn new(limits: usize) -> Self {
        Self { limits, headers: Vec::new(), numbers: Vec::new(), ends: Vec::new(), repeats: Vec::new() }
    }

    /// Adds a step: the index of its template, for each limit the index of its key, and its own numbers.
    pub(crate) fn push(&mut self, template: usize, key_indices: &[u16], numbers: &[f64]) {
        let header = self.headers.len();
        self.headers.push(u16::try_from(template + 1).unwrap_or(u16::MAX));
        // `NO_KEY` wraps to 0.
        self.headers.extend(key_indices.iter().map(|index| index.wrapping_add(1)));
        if let Some(repeats) = self.repeats.last_mut()
            && self.headers[header - self.limits - 1..header] == self.headers[header..]
            && self.numbers[self.ends.iter().nth_back(1).copied().unwrap_or(0)..] == *numbers
        {
            // A batch has fewer operations than a `u16` counts.
            *repeats += 1;
            self.headers.truncate(header);
            return;
        }
        self.numbers.extend_from_slice(numbers);
        self.ends.push(self.numbers.len());
        self.repeats.push(1);
    }

    /// Returns the number of encoded steps, without repeats, and the steps. If each of these keys has one step, in the order
    /// of the keys: 0, and the own numbers of the steps.
    pub(crate) fn encoded(&self, keys: usize) -> (usize, Vec<u8>) {
        let steps = self.headers.chunks(self.limits + 1).zip(&self.repeats);
        // A key may be known to the batch without a step: an update that carries nothing.
        let is_in_order =
            |(index, (header, repeats)): (usize, (&[u16], &u16))| *repeats == 1 && usize::from(header[1]) == index + 1;
        let is_plain = self.limits == 1 && self.repeats.len() == keys && steps.clone().enumerate().all(is_in_order);
        let (mut encoded, mut start) = (Vec::with_capacity(self.headers.len() * 4 + self.numbers.len() * 8), 0);
        for ((header, repeats), &end) in steps.zip(&self.ends) {
            if !is_plain {
                header.iter().chain([repeats]).for_each(|number| encoded.extend_from_slice(&number.to_le_bytes()));
            }
            self.numbers[start..end].iter().for_each(|number| push_f64(*number, &mut encoded));
            start = end;
        }
        (if is_plain { 0 } else { self.repeats.len() }, encoded)
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
        assert_eq!(encoder.encoded(1), (2, [step(2, 1.0), step(1, 2.0)].concat()));
    }
}
