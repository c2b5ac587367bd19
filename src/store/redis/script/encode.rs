/// The key index of a limit without part in an operation. The script receives 0 for it.
pub(crate) const NO_KEY: u16 = u16::MAX;

/// Encodes the steps of a batch. Equal consecutive steps become one step with a repeat count.
pub(crate) struct StepEncoder {
    encoded: Vec<u8>,
    previous: Vec<u16>,
    step: Vec<u16>,
    count: usize,
    has_repeats: bool,
}

impl StepEncoder {
    pub(crate) fn new(limits: usize) -> Self {
        Self {
            encoded: Vec::new(),
            previous: Vec::new(),
            step: Vec::with_capacity(limits + 1),
            count: 0,
            has_repeats: false,
        }
    }

    /// Adds a step: the index of its template, and for each limit the index of its key.
    pub(crate) fn push(&mut self, template: usize, key_indices: &[u16]) {
        self.step.clear();
        self.step.push(one_based(template));
        // `NO_KEY` wraps to 0.
        self.step.extend(key_indices.iter().map(|index| index.wrapping_add(1)));
        if self.step == self.previous {
            // The count ends the step before. A batch has fewer operations than a `u16` counts.
            let repeats = self.encoded.len() - 2;
            let count = u16::from_le_bytes([self.encoded[repeats], self.encoded[repeats + 1]]) + 1;
            self.encoded[repeats..].copy_from_slice(&count.to_le_bytes());
            self.has_repeats = true;
            return;
        }
        for number in &self.step {
            self.encoded.extend_from_slice(&number.to_le_bytes());
        }
        self.encoded.extend_from_slice(&1_u16.to_le_bytes());
        self.count += 1;
        self.previous.clone_from(&self.step);
    }

    /// Returns the number of encoded steps, without repeats, and the steps: none if each of these keys has one step, in the
    /// order of the keys.
    pub(crate) fn encoded(&self, keys: usize) -> (usize, &[u8]) {
        let is_plain = self.previous.len() == 2 && self.count == keys && !self.has_repeats;
        if is_plain { (0, &[]) } else { (self.count, &self.encoded) }
    }
}

fn one_based(index: usize) -> u16 {
    u16::try_from(index + 1).unwrap_or(u16::MAX)
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

    /// Returns the number of steps, and the length of the encoded ones, if the steps are on these keys of each limit.
    fn encoded(steps: &[&[u16]], keys: usize) -> (usize, usize) {
        let mut encoder = StepEncoder::new(steps[0].len());
        for step in steps {
            encoder.push(0, step);
        }
        let (count, steps) = encoder.encoded(keys);
        (count, steps.len())
    }

    #[test]
    fn steps_do_not_travel_if_each_key_has_one() {
        assert_eq!(encoded(&[&[0], &[1], &[2]], 3), (0, 0));
        assert_eq!(encoded(&[&[0], &[1], &[0]], 2), (3, 18), "a key has two steps");
        assert_eq!(encoded(&[&[0], &[1], &[1]], 2), (2, 12), "a step is repeated");
        assert_eq!(encoded(&[&[0], &[NO_KEY]], 1), (2, 12), "a step without a key");
        assert_eq!(encoded(&[&[0, 1], &[2, 3]], 4), (2, 16), "several limits");
        assert_eq!(encoded(&[&[0, 1], &[2, 1]], 2), (2, 16), "several limits");
    }
}
