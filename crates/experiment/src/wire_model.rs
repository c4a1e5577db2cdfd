//! The wire model: posting-bound throughput is wire bytes × 8 / post time, capped by what link frames carry.
//!
//! Headers of one RoCEv2 packet: Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4. The first packet of a
//! WRITE adds RETH 16, the last of a WRITE with immediate ImmDt 4 (IBTA vol. 1 chapter 9, Annex A17).

use super::paper::Curve;
use super::statistics::median;

/// Headers that every packet carries.
const PACKET: u64 = 14 + 20 + 8 + 12 + 4 + 4;
const RETH: u64 = 16;
const IMMEDIATE: u64 = 4;
/// Preamble and gap: on the wire, but not in a switch port's counters.
const UNCOUNTED: u64 = 20;

/// What the paper's generator sends, and its switch counts.
#[derive(Clone, Copy, Debug)]
pub struct WireModel {
    /// Largest payload of one packet.
    pub mtu: u64,
    /// Whether the last packet carries an immediate.
    pub immediate: bool,
    /// The link's rate in Gbit/s, preambles included.
    pub line_gbps: f64,
}

impl WireModel {
    /// The paper's: WRITE with immediate, path MTU 4096, 100 Gbit/s.
    pub const PAPER: WireModel = WireModel { mtu: 4096, immediate: true, line_gbps: 100.0 };

    /// Bytes of one message as a port counts them.
    pub fn wire_bytes(&self, payload_bytes: u64) -> u64 {
        let immediate = if self.immediate { IMMEDIATE } else { 0 };
        payload_bytes + self.packets(payload_bytes) * PACKET + RETH + immediate
    }

    /// Packets of one message; an empty one is one packet.
    pub fn packets(&self, payload_bytes: u64) -> u64 {
        payload_bytes.div_ceil(self.mtu).max(1)
    }

    /// What a port counts at most when messages of this size fill the link.
    pub fn capacity_gbps(&self, payload_bytes: u64) -> f64 {
        let counted = self.wire_bytes(payload_bytes) as f64;
        let uncounted = (self.packets(payload_bytes) * UNCOUNTED) as f64;
        self.line_gbps * counted / (counted + uncounted)
    }

    /// Throughput at a port when one request is posted every `post_ns`.
    pub fn throughput_gbps(&self, payload_bytes: u64, post_ns: f64) -> f64 {
        self.posting_gbps(payload_bytes, post_ns).min(self.capacity_gbps(payload_bytes))
    }

    /// The same on a link without a bound: what posting alone allows.
    pub fn posting_gbps(&self, payload_bytes: u64, post_ns: f64) -> f64 {
        self.wire_bytes(payload_bytes) as f64 * 8.0 / post_ns
    }
}

/// The model of one published poster, as drawn: throughput by payload size, from the median of its published
/// post times. `None` without any.
pub fn of_published(post_times: &Curve) -> Option<impl Fn(f64) -> f64 + use<>> {
    let times: Vec<f64> = post_times.points.iter().map(|[_, ns, _, _]| *ns).collect();
    let post_ns = median(&times)?;
    Some(move |payload_bytes: f64| WireModel::PAPER.throughput_gbps(payload_bytes as u64, post_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::Paper;
    use crate::root;

    #[test]
    fn release_m4_headers_are_counted_packet_by_packet() {
        for (payload, wire) in
            [(0, 82), (64, 146), (4096, 4178), (4097, 4097 + 78 + 66), (8193, 8193 + 78 + 62 + 66)]
        {
            assert_eq!(WireModel::PAPER.wire_bytes(payload), wire, "{payload}");
        }
        let plain = WireModel { immediate: false, ..WireModel::PAPER };
        assert_eq!(plain.wire_bytes(64), 142);
    }

    #[test]
    fn the_plateau_is_the_published_one() {
        let capacity = WireModel::PAPER.capacity_gbps(1 << 20);
        assert!((capacity - 99.52).abs() < 0.01, "{capacity}");
    }

    #[test]
    fn the_model_meets_the_published_gpu_curves_within_three_percent() {
        let read = |figure| Paper::read(&root().join(format!("experiments/fig{figure}"))).unwrap();
        let (throughput, post_time) = (read(4), read(5));
        let mut compared = 0;
        for curve in throughput.series.iter().filter(|curve| curve.name.starts_with("gpu-")) {
            let times = post_time.series.iter().find(|times| times.name == curve.name).unwrap();
            let drawn = of_published(times).unwrap();
            for [payload, published, _, _] in &curve.points {
                let model = drawn(*payload);
                let error = (model / published - 1.0).abs();
                assert!(error < 0.03, "{} at {payload} B: model {model}, published {published}", curve.name);
                compared += 1;
            }
        }
        assert_eq!(compared, 29 + 33);
    }
}
