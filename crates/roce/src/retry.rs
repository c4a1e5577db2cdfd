//! Retries of a reliable requester: the timer, the two counters, and the time of their codes.
//!
//! IBTA vol. 1 §9.7.5.2.8 (RNR NAK timer table) and §9.7.6 (timeouts and retry counters). Left out: the
//! freedom to wait up to four times the ack timeout; this timer is exact.

use crate::Now;

/// `rnr_retry` value that stands for «for ever».
pub const RNR_RETRY_FOR_EVER: u8 = 7;

/// Wait of an RNR NAK timer code's low 5 bits (IBTA §9.7.5.2.8, «Encoding for RNR NAK Timer Field»). Unit
/// 10 us: 1 for code 1, then in turn powers of two and three times such, up to code 0, which stands for 32.
pub const fn rnr_timer_ns(code: u8) -> u64 {
    let units = match code & 0x1f {
        0 => 1 << 16,
        1 => 1,
        code if code.is_multiple_of(2) => 1 << (code / 2),
        code => 3 << (code / 2 - 1),
    };
    units * 10_000
}

/// Ack time-out of a 5-bit code: 4.096 µs · 2^code, or `None` for 0, which means «wait for ever».
pub const fn ack_timeout_ns(code: u8) -> Option<u64> {
    match code & 0x1f {
        0 => None,
        code => Some(4096 << code),
    }
}

/// The one timer of a requester.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timer {
    /// Nothing outstanding, or the time-out is infinite.
    #[default]
    Stopped,
    /// An acknowledgement is due.
    Ack {
        /// When it counts as lost.
        deadline: Now,
    },
    /// The responder asked for patience; nothing is sent meanwhile.
    Rnr {
        /// When to try again.
        until: Now,
    },
}

impl Timer {
    /// When it fires.
    pub const fn due(self) -> Option<Now> {
        match self {
            Timer::Stopped => None,
            Timer::Ack { deadline } => Some(deadline),
            Timer::Rnr { until } => Some(until),
        }
    }
}

/// A counter of attempts that progress refills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    limit: u8,
    left: u8,
    for_ever: bool,
}

impl Budget {
    /// Transport retries: a 3-bit count, always finite.
    pub const fn transport(retry_count: u8) -> Budget {
        let limit = retry_count & 7;
        Budget { limit, left: limit, for_ever: false }
    }

    /// RNR retries: a 3-bit count, 7 for ever.
    pub const fn rnr(rnr_retry: u8) -> Budget {
        let limit = rnr_retry & 7;
        Budget { limit, left: limit, for_ever: limit == RNR_RETRY_FOR_EVER }
    }

    /// Takes one attempt; false when none is left.
    #[must_use]
    pub const fn take(&mut self) -> bool {
        if self.for_ever {
            return true;
        }
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        true
    }

    /// Something was acknowledged: all attempts are back.
    pub const fn refill(&mut self) {
        self.left = self.limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeouts_are_4096_ns_times_a_power_of_two_and_zero_is_infinite() {
        for (code, ns) in [
            (0, None),
            (1, Some(8_192)),
            (8, Some(1_048_576)),
            (14, Some(67_108_864)),
            (31, Some(8_796_093_022_208)),
        ] {
            assert_eq!(ack_timeout_ns(code), ns, "code {code}");
        }
    }

    /// Rows from the table of the specification, in units of 10 µs.
    #[test]
    fn rnr_timer_codes_have_the_times_of_the_specification() {
        // The kernel of rxe-rc.pcap waited 40.96 ms on code 24.
        let units = [
            65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
            2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
        ];
        for (code, tens_of_us) in (0..).zip(units) {
            assert_eq!(rnr_timer_ns(code), tens_of_us * 10_000, "code {code}");
        }
    }

    #[test]
    fn a_budget_of_n_gives_n_retries_and_rnr_seven_never_ends() {
        for (name, mut budget, gives) in [
            ("none", Budget::transport(0), 0),
            ("three", Budget::transport(3), 3),
            ("transport 7 is a number", Budget::transport(7), 7),
            ("rnr 6", Budget::rnr(6), 6),
            ("rnr 7", Budget::rnr(7), 1000),
        ] {
            let given = (0..1000).take_while(|_| budget.take()).count();
            assert_eq!(given, gives, "{name}");
            budget.refill();
            assert_eq!(budget.take(), gives > 0, "{name}, refilled");
        }
    }
}
