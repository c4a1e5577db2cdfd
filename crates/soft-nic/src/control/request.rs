//! What a NIC can be asked, and the values of its answers.

use mlx5_device::Span;
use mlx5_device::faults::{Injection, InjectionKind, Settings};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Devices, their ports and how many QPs they have: a [`PortStatus`] for each port.
    Status,
    /// Every counter and its value, by the names of the stats line; then each port's, if there are several.
    Counters,
    /// The last reasons why something failed: a [`Failure`](crate::abi::reasons::Failure) for each.
    Explain,
    /// A port goes down or up.
    Link {
        /// Index of the device.
        device: u8,
        /// Number of its port, from 1.
        port: u8,
        up: bool,
    },
    /// Loss, seed, delay, rates.
    Set(Settings),
    /// One fault.
    Inject(Injection),
    /// The packets of the wire, as a pcapng file behind the answer.
    Capture {
        /// Ends after so many; 0: when the caller goes away.
        packets: u64,
    },
}

impl Request {
    /// Refuses what no device can be asked. The error is a sentence.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Request::Inject(Injection { kind: InjectionKind::Drop(Some(psn)), .. }) if *psn > 0xff_ffff => {
                Err(format!("PSN {psn}; it has 24 bits"))
            }
            Request::Inject(Injection { kind: InjectionKind::DelayRead(us), .. }) if *us > 60_000_000 => {
                Err(format!("a delay of {us} µs; 60000000 is the longest"))
            }
            _ => Ok(()),
        }
    }
}

/// A port as [`Request::Status`] is answered.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct PortStatus {
    /// `mlx5_0`, and `mlx5_0/2` where devices have more than one port.
    pub name: String,
    pub is_up: bool,
    pub qps: u64,
    /// One-way delay of what leaves.
    pub delay: Span,
}

#[cfg(test)]
mod tests {
    use mlx5_device::counters::{syndrome_named, syndrome_names};

    use super::*;
    use crate::control::frame::{bytes_of, value_of};

    fn inject(kind: InjectionKind) -> Request {
        Request::Inject(Injection { qpn: 64, kind })
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let all = Settings {
            loss: Some(0.01),
            reorder: Some(0.5),
            seed: Some(u64::MAX),
            delay: Some("250us".parse().unwrap()),
            rate_gbps: Some(Some(2.5)),
            messages_per_second: Some(Some(1000.0)),
        };
        let none = Settings { rate_gbps: Some(None), messages_per_second: Some(None), ..Settings::default() };
        let zeros = Settings { loss: Some(0.0), delay: Some(Span(0)), ..Settings::default() };
        let link = |device, port, up| Request::Link { device, port, up };
        let errors = syndrome_names().map(|name| InjectionKind::ErrorCqe(syndrome_named(name).unwrap()));
        let faults =
            [InjectionKind::Drop(None), InjectionKind::Drop(Some(0xff_ffff)), InjectionKind::CorruptCrc];
        let faults = faults.into_iter().chain([InjectionKind::DelayRead(60_000_000)]).chain(errors);
        let asked =
            [Request::Status, Request::Counters, Request::Explain, link(0, 1, false), link(7, 2, true)];
        let settings = [all, none, zeros].map(Request::Set);
        let captures = [0, u64::MAX].map(|packets| Request::Capture { packets });
        let requests = asked.into_iter().chain(settings).chain(captures).chain(faults.map(inject));
        for request in requests {
            assert_eq!(value_of::<Request>(&bytes_of(&request)).unwrap(), request);
            assert_eq!(request.check(), Ok(()));
        }
    }

    #[test]
    fn anything_else_is_refused_in_one_short_line() {
        for request in
            [inject(InjectionKind::Drop(Some(1 << 24))), inject(InjectionKind::DelayRead(60_000_001))]
        {
            let error = request.check().unwrap_err();
            assert!(error.len() < 400 && !error.contains('\n'), "{error}");
        }
        let delay = Settings { delay: Some(Span(1)), ..Settings::default() };
        let mut soon = bytes_of(&Request::Set(delay));
        let unit = soon.iter().rposition(|byte| *byte == b's').unwrap();
        soon[unit] = b'x';
        let mut syndrome =
            bytes_of(&inject(InjectionKind::ErrorCqe(syndrome_named("remote_access").unwrap())));
        *syndrome.last_mut().unwrap() = 0xff;
        let more = [bytes_of(&Request::Status), vec![0]].concat();
        let cut = bytes_of(&Request::Link { device: 0, port: 1, up: true })[..2].to_vec();
        for bytes in [vec![], b" ".to_vec(), b"status".to_vec(), vec![b'x'; 1000], soon, syndrome, more, cut]
        {
            assert!(value_of::<Request>(&bytes).is_err(), "{bytes:?}");
        }
    }
}
