/// The number of cluster slots.
pub(super) const SLOT_COUNT: u16 = 16_384;

/// Returns the cluster slot of a key.
///
/// The slot is computed from the first `{tag}` in the key if the tag is not empty, else from the whole key.
pub(crate) fn cluster_slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key).unwrap_or(key)) % SLOT_COUNT
}

fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let start = key.iter().position(|&byte| byte == b'{')? + 1;
    let length = key[start..].iter().position(|&byte| byte == b'}')?;
    (length > 0).then(|| &key[start..start + length])
}

/// CRC-16/XMODEM: polynomial 0x1021, initial value 0, not reflected.
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
    use super::cluster_slot;

    #[test]
    fn cluster_slot_matches_redis() {
        // The expected slots are replies to CLUSTER KEYSLOT.
        assert_eq!(super::crc16(b"123456789"), 0x31c3);
        assert_eq!(cluster_slot(b"foo"), 12182);
        assert_eq!(cluster_slot(b"bar"), 5061);
        assert_eq!(cluster_slot(b"{foo}.x"), cluster_slot(b"foo"));
        assert_eq!(cluster_slot(b"x{foo}{bar}"), cluster_slot(b"foo"));
        assert_ne!(cluster_slot(b"{}foo"), cluster_slot(b"{}bar"));
        assert_ne!(cluster_slot(b"x{foo"), cluster_slot(b"x{bar"));
    }
}
