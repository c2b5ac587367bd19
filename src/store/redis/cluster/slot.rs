//! The slots of a cluster: which of them a key is in.

/// How many slots there are.
pub(crate) const SLOTS: u16 = 16_384;

/// The slot of a key: of its first `{tag}` if there is one that is not empty, else of all of it.
pub(crate) fn slot(key: &[u8]) -> u16 {
    crc16(tag(key).unwrap_or(key)) % SLOTS
}

fn tag(key: &[u8]) -> Option<&[u8]> {
    let start = key.iter().position(|&byte| byte == b'{')? + 1;
    let length = key[start..].iter().position(|&byte| byte == b'}')?;
    (length > 0).then(|| &key[start..start + length])
}

/// CRC-16 as XMODEM has it: polynomial 1021, from zero, not reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) ^ u16::from(byte))])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        #[allow(clippy::cast_possible_truncation, reason = "below 256")]
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::slot;

    #[test]
    fn slots_are_as_the_specification_has_them() {
        // What a server answers to CLUSTER KEYSLOT.
        assert_eq!(super::crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"bar"), 5061);
        assert_eq!(slot(b"{foo}.x"), slot(b"foo"));
        assert_eq!(slot(b"x{foo}{bar}"), slot(b"foo"));
        assert_ne!(slot(b"{}foo"), slot(b"{}bar"));
        assert_ne!(slot(b"x{foo"), slot(b"x{bar"));
    }
}
