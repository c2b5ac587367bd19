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

    pub(in crate::key) fn try_ipv4(self, bits: u8) -> Result<Self, Error> {
        if (1..=32).contains(&bits) {
            Ok(Self { ipv4: bits, ..self })
        } else {
            Err(Error::config(format!("invalid IPv4 prefix of {bits} bits; use 1 to 32 bits")))
        }
    }

    pub(in crate::key) fn try_ipv6(self, bits: u8) -> Result<Self, Error> {
        if (1..=128).contains(&bits) {
            Ok(Self { ipv6: bits, ..self })
        } else {
            Err(Error::config(format!("invalid IPv6 prefix of {bits} bits; use 1 to 128 bits")))
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
            IpAddr::V6(v6) => {
                let mask = u128::MAX << (128 - u32::from(self.ipv6));
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        }
    }
}

/// Extracts the IPv4 address that a NAT64 embeds in the last 32 bits of `64:ff9b::/96` (RFC 6052).
fn from_nat64(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
            }
            _ => address,
        },
        IpAddr::V4(_) => address,
    }
}

/// Defines the setters of an extractor with a field `prefixes`.
macro_rules! prefix_setters {
    () => {
        /// Sets the length of the prefix that is the key of an IPv6 address. The default is 64 bits.
        ///
        /// # Panics
        ///
        /// If `bits` is not in 1 to 128. In a `const`, the panic is a compile error.
        #[must_use]
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
        pub fn try_ipv6_prefix(mut self, bits: u8) -> Result<Self, Error> {
            self.prefixes = self.prefixes.try_ipv6(bits)?;
            Ok(self)
        }

        /// Sets the length of the prefix that is the key of an IPv4 address. The default is 32 bits.
        ///
        /// # Panics
        ///
        /// If `bits` is not in 1 to 32. In a `const`, the panic is a compile error.
        #[must_use]
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
        pub fn try_ipv4_prefix(mut self, bits: u8) -> Result<Self, Error> {
            self.prefixes = self.prefixes.try_ipv4(bits)?;
            Ok(self)
        }
    };
}

pub(in crate::key) use prefix_setters;
