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

/// CRC-16/XMODEM: polynomial 0x1021, initial value 0, not reflected. Four bits at a time.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 16] = [
        0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5, 0x60c6, 0x70e7, //
        0x8108, 0x9129, 0xa14a, 0xb16b, 0xc18c, 0xd1ad, 0xe1ce, 0xf1ef,
    ];
    let bits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    bits.fold(0, |crc: u16, bits| (crc << 4) ^ TABLE[usize::from((crc >> 12) ^ u16::from(bits))])
}

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
