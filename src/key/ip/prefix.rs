use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::Error;

/// The number of bits of an address that form its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::key) struct Prefixes {
    ipv4: u8,
    ipv6: u8,
}

impl Prefixes {
    /// Whole IPv4 addresses, and IPv6 /64 prefixes, because one client has at least a /64.
    pub(in crate::key) const DEFAULT: Self = Self { ipv4: 32, ipv6: 64 };

    #[track_caller]
    pub(in crate::key) const fn ipv4(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 32, "invalid IPv4 prefix: use 1 to 32 bits");
        Self { ipv4: bits, ..self }
    }

    #[track_caller]
    pub(in crate::key) const fn ipv6(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 128, "invalid IPv6 prefix: use 1 to 128 bits");
        Self { ipv6: bits, ..self }
    }

    /// Returns an error unless the number of bits is in 1 to `max`.
    pub(in crate::key) fn check(family: &str, bits: u8, max: u8) -> Result<(), Error> {
        if (1..=max).contains(&bits) {
            Ok(())
        } else {
            Err(Error::config(format!("invalid {family} prefix of {bits} bits; use 1 to {max} bits")))
        }
    }

    /// Returns the key of an address: converted to IPv4 if possible, then cut to the prefix.
    ///
    /// The order matters: cutting first would give all IPv4-mapped addresses one key.
    #[inline]
    pub(in crate::key) fn key_of(self, address: IpAddr) -> IpAddr {
        match from_nat64(address.to_canonical()) {
            IpAddr::V4(v4) => {
                let mask = u32::MAX << (32 - u32::from(self.ipv4));
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) if is_local_nat64(v6) => IpAddr::V6(v6),
            IpAddr::V6(v6) => {
                let mask = u128::MAX << (128 - u32::from(self.ipv6));
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        }
    }
}

/// Extracts the IPv4 address that a NAT64 embeds in the last 32 bits of `64:ff9b::/96` (RFC 6052), or of a /96 in
/// `64:ff9b:1::/48` (RFC 8215).
fn from_nat64(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match v6.segments() {
            // Shorter prefixes in the second network embed the address before the last 32 bits, which begin with zeros.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 1, _, 0, 0, high @ 1..=u16::MAX, low] => {
                IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
            }
            _ => address,
        },
        IpAddr::V4(_) => address,
    }
}

/// Returns whether a NAT64 of a local network has written the address (RFC 8215), with a prefix that is not a /96. The whole
/// address is the key then: its first 64 bits may be the same for all IPv4 clients.
fn is_local_nat64(address: Ipv6Addr) -> bool {
    matches!(address.segments(), [0x64, 0xff9b, 1, ..])
}

/// Defines the setters of an extractor with a field `prefixes`.
macro_rules! prefix_setters {
    () => {
        /// Sets the length of the prefix that is the key of an IPv6 address. The default is 64 bits.
        ///
        /// # Panics
        ///
        /// If `bits` is not in 1 to 128. In a `const`, the panic is a compile error.
        #[track_caller]
        pub const fn ipv6_prefix(mut self, bits: u8) -> Self {
            self.prefixes = self.prefixes.ipv6(bits);
            self
        }

        /// Sets the same length as [`ipv6_prefix`](Self::ipv6_prefix), and returns an error instead of panicking.
        ///
        /// # Errors
        ///
        /// If `bits` is not in 1 to 128.
        pub fn try_ipv6_prefix(self, bits: u8) -> Result<Self, Error> {
            Prefixes::check("IPv6", bits, 128)?;
            Ok(self.ipv6_prefix(bits))
        }

        /// Sets the length of the prefix that is the key of an IPv4 address. The default is 32 bits.
        ///
        /// # Panics
        ///
        /// If `bits` is not in 1 to 32. In a `const`, the panic is a compile error.
        #[track_caller]
        pub const fn ipv4_prefix(mut self, bits: u8) -> Self {
            self.prefixes = self.prefixes.ipv4(bits);
            self
        }

        /// Sets the same length as [`ipv4_prefix`](Self::ipv4_prefix), and returns an error instead of panicking.
        ///
        /// # Errors
        ///
        /// If `bits` is not in 1 to 32.
        pub fn try_ipv4_prefix(self, bits: u8) -> Result<Self, Error> {
            Prefixes::check("IPv4", bits, 32)?;
            Ok(self.ipv4_prefix(bits))
        }
    };
}

pub(in crate::key) use prefix_setters;
