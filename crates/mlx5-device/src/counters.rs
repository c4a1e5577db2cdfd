//! What the NIC counted, by name: written as one JSON line at exit, read by tests and figures.

use mlx5_layout::{CqeSyndrome, SendOpcode};
use roce::packet::{Aeth, Syndrome};
use roce::{Content, DropReason, Packet, Status, Verdict, count, counters};

use super::doorbell::Violation;

/// Kinds of send WQE that are counted apart; everything else is the last one.
const OPCODES: [(Option<SendOpcode>, &str, &str); 11] = [
    (Some(SendOpcode::Nop), "posted_nop", "completed_nop"),
    (Some(SendOpcode::Send), "posted_send", "completed_send"),
    (Some(SendOpcode::SendImm), "posted_send_imm", "completed_send_imm"),
    (Some(SendOpcode::SendInvalidate), "posted_send_inval", "completed_send_inval"),
    (Some(SendOpcode::RdmaWrite), "posted_write", "completed_write"),
    (Some(SendOpcode::RdmaWriteImm), "posted_write_imm", "completed_write_imm"),
    (Some(SendOpcode::RdmaRead), "posted_read", "completed_read"),
    (Some(SendOpcode::AtomicCompareSwap), "posted_compare_swap", "completed_compare_swap"),
    (Some(SendOpcode::AtomicFetchAdd), "posted_fetch_add", "completed_fetch_add"),
    (Some(SendOpcode::Umr), "posted_umr", "completed_umr"),
    (None, "posted_other", "completed_other"),
];

const SYNDROMES: [(CqeSyndrome, &str); 13] = [
    (CqeSyndrome::LocalLength, "error_local_length"),
    (CqeSyndrome::LocalQpOperation, "error_local_qp_operation"),
    (CqeSyndrome::LocalProtection, "error_local_protection"),
    (CqeSyndrome::WrFlush, "error_flush"),
    (CqeSyndrome::MwBind, "error_mw_bind"),
    (CqeSyndrome::BadResponse, "error_bad_response"),
    (CqeSyndrome::LocalAccess, "error_local_access"),
    (CqeSyndrome::RemoteInvalidRequest, "error_remote_invalid_request"),
    (CqeSyndrome::RemoteAccess, "error_remote_access"),
    (CqeSyndrome::RemoteOperation, "error_remote_operation"),
    (CqeSyndrome::TransportRetryExceeded, "error_retry_exceeded"),
    (CqeSyndrome::RnrRetryExceeded, "error_rnr_retry_exceeded"),
    (CqeSyndrome::RemoteAborted, "error_remote_aborted"),
];

const VIOLATIONS: [&str; 4] =
    ["doorbell_missing", "doorbell_wrong_qpn", "doorbell_record_late", "doorbell_record_range"];

counters! {
    /// What one port carried; the sums of all ports are among [`Counters`].
    PortCounters [fields ""] {
        /// Messages sent, those sent again not counted.
        messages_sent,
        /// Bytes of wire that everything sent takes.
        wire_bytes_sent,
        /// Messages that were executed or refused here, pieces and packets of one counted by themselves.
        requests_received,
        /// Messages, and replies, that arrived while the port was down.
        dropped_port_down,
    }
}

counters! {
    /// Everything that one NIC process counted since it started.
    Counters [plain ""] {
        /// Messages transmitted whole, without repetitions: counted at the ports, and summed when asked for.
        messages_sent,
        /// Their payload.
        bytes_sent,
        /// What they took of the link, headers and gaps included: summed from the ports too.
        wire_bytes_sent,
        /// Messages executed for a peer.
        messages_received,
        /// Their payload, READ responses included.
        bytes_received,
        /// READ payload that came back, also of a READ that failed after it.
        bytes_read,
        /// Receives consumed.
        receives_consumed,
        /// Those of them that came from shared receive queues.
        receives_shared,
        /// Memory windows that a peer's SEND closed.
        windows_invalidated,
        /// CQEs written.
        cqes,
        /// Completion events given.
        completion_events,
        /// Asynchronous events given.
        async_events,
        /// Packets sent again, for any reason. A message in shared memory counts as the packets it needs.
        retransmissions,
        /// RNR NAKs sent.
        rnr_naks_sent,
        /// RNR NAKs received.
        rnr_naks_received,
        /// NAKs sent.
        naks_sent,
        /// Requests that were executed before and only answered again.
        duplicates,
        /// Messages sent to an address or a process that does not exist.
        lost_unreachable,
        /// Requests for a QPN that is not here.
        dropped_unknown_qp,
        /// Requests for a QP that does not receive in its present state.
        dropped_qp_state,
        /// Requests addressed to another port, or from another than the peer's.
        dropped_address,
        /// Requests from a QP that is not the peer, or of another service.
        dropped_peer,
        /// Datagrams with a wrong Q_Key.
        dropped_qkey,
        /// Requests dropped by the transport for other reasons.
        dropped_transport,
        /// Replies for a QP that does not wait for one.
        dropped_replies,
        /// Packets that the transport took: requests executed or answered, and expected answers.
        packets_taken,
        /// Register writes seen.
        doorbells_taken,
        /// Times that send queues were executed by their record alone, because they share a register.
        doorbells_unchecked,
        /// Send queues that are executed so.
        doorbells_unchecked_queues,
        /// Register writes that named a QP which is not on that page.
        doorbells_stray,
        /// CQs that died because they were full or unreachable.
        cq_overruns,
        /// Send WQEs that were the first of their queue behind a message of the peer.
        turnarounds,
        /// Sum of the times from the execution of the last such message until that WQE was read.
        turnaround_ns,
        /// Changes by `softnic ctl`: links, settings, injected faults. Not 0: the NIC was impaired.
        ctl_changes,
        /// Messages and replies sent while the port was down.
        lost_port_down,
        /// Messages and replies that arrived while the port was down.
        dropped_port_down,
        /// Requests, or packets of them, lost on demand.
        injected_lost_requests,
        /// Replies, or packets of them, lost on demand.
        injected_lost_replies,
        /// Packets overtaken on demand.
        injected_overtaken,
        /// Sends that failed on demand.
        injected_errors,
        /// Packets sent with a wrong ICRC on demand.
        injected_crc_errors,
        /// READs answered late on demand.
        injected_read_delays,
    }
    posted: [u64; OPCODES.len()],
    completed: [u64; OPCODES.len()],
    errors: [u64; SYNDROMES.len()],
    violations: [u64; VIOLATIONS.len()],
}

/// The syndrome whose counter is `error_NAME`.
pub fn syndrome_named(name: &str) -> Option<CqeSyndrome> {
    SYNDROMES.iter().find(|row| row.1.strip_prefix("error_") == Some(name)).map(|row| row.0)
}

/// Syndrome and vendor syndrome of a status; none for success. Vendor syndromes are those that cards report
/// in public logs with these syndromes; 0 where none is known.
pub(super) fn syndrome(status: Status) -> Option<(CqeSyndrome, u8)> {
    Some(match status {
        Status::Success => return None,
        Status::LocalLength => (CqeSyndrome::LocalLength, 0),
        Status::LocalQpOperation => (CqeSyndrome::LocalQpOperation, 0),
        Status::LocalProtection => (CqeSyndrome::LocalProtection, 0),
        Status::WindowBind => (CqeSyndrome::MwBind, 0),
        Status::Flushed => (CqeSyndrome::WrFlush, 0xf9),
        Status::BadResponse => (CqeSyndrome::BadResponse, 0),
        Status::RemoteInvalidRequest => (CqeSyndrome::RemoteInvalidRequest, 0x8a),
        Status::RemoteAccess => (CqeSyndrome::RemoteAccess, 0x88),
        Status::RemoteOperation => (CqeSyndrome::RemoteOperation, 0),
        Status::RetryExceeded => (CqeSyndrome::TransportRetryExceeded, 0x81),
        Status::RnrRetryExceeded => (CqeSyndrome::RnrRetryExceeded, 0),
    })
}

/// What [`syndrome_named`] knows it by.
pub fn name_of(syndrome: CqeSyndrome) -> &'static str {
    let named = SYNDROMES.iter().find(|row| row.0 == syndrome);
    named.and_then(|row| row.1.strip_prefix("error_")).unwrap_or_default()
}

/// Every name that [`syndrome_named`] knows.
pub fn syndrome_names() -> impl Iterator<Item = &'static str> {
    SYNDROMES.iter().filter_map(|row| row.1.strip_prefix("error_"))
}

impl Counters {
    pub(super) fn post(&mut self, opcode: u8) {
        count(&mut self.posted[opcode_row(opcode)], 1);
    }

    pub(super) fn complete(&mut self, opcode: u8) {
        count(&mut self.completed[opcode_row(opcode)], 1);
    }

    pub(super) fn error(&mut self, syndrome: CqeSyndrome) {
        if let Some(row) = SYNDROMES.iter().position(|(s, _)| *s == syndrome) {
            self.errors[row] += 1;
        }
    }

    /// Executed for a peer: `ends`: the last or only part of its message; `length`: its payload bytes.
    pub(super) fn execute(&mut self, ends: bool, length: u32) {
        count(&mut self.messages_received, ends.into());
        count(&mut self.bytes_received, length.into());
    }

    /// The transport answered or dropped a request by itself, so many of them `again`.
    pub(super) fn answered(&mut self, verdict: &Verdict, again: u64) {
        self.duplicates += again;
        *match verdict {
            Verdict::Dropped(DropReason::WrongService) => &mut self.dropped_peer,
            Verdict::Dropped(DropReason::WrongQkey) => &mut self.dropped_qkey,
            Verdict::Dropped(_) => &mut self.dropped_transport,
            _ => &mut self.packets_taken,
        } += 1;
    }

    /// A packet that may answer a request leaves. True: it is an RNR NAK.
    pub(super) fn answer(&mut self, packet: &Packet) -> bool {
        let Content::Acknowledge(Aeth { syndrome, .. }) = packet.content else { return false };
        match syndrome {
            Syndrome::Ack => {}
            Syndrome::RnrNak { .. } => self.rnr_naks_sent += 1,
            Syndrome::Nak(_) => self.naks_sent += 1,
        }
        matches!(syndrome, Syndrome::RnrNak { .. })
    }

    /// Whether this NIC itself has made something not arrive.
    pub(super) fn loses_on_demand(&self) -> bool {
        let injected = self.injected_lost_requests + self.injected_lost_replies + self.injected_crc_errors;
        injected + self.lost_port_down + self.dropped_port_down > 0
    }

    pub(super) fn violate(&mut self, violation: Violation) {
        self.violations[violation as usize] += 1;
    }

    /// WQEs with this opcode that the NIC read.
    pub fn posted(&self, opcode: SendOpcode) -> u64 {
        self.posted[opcode_row(opcode.to_u8())]
    }

    /// WQEs with this opcode that ended well.
    pub fn completed(&self, opcode: SendOpcode) -> u64 {
        self.completed[opcode_row(opcode.to_u8())]
    }

    /// Doorbell violations of this kind.
    pub fn violations(&self, violation: Violation) -> u64 {
        self.violations[violation as usize]
    }

    /// Every counter with its name.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let posted = OPCODES.iter().map(|row| row.1).zip(self.posted);
        let completed = OPCODES.iter().map(|row| row.2).zip(self.completed);
        let errors = SYNDROMES.iter().map(|row| row.1).zip(self.errors);
        let violations = VIOLATIONS.into_iter().zip(self.violations);
        self.plain().chain(posted).chain(completed).chain(errors).chain(violations)
    }
}

fn opcode_row(opcode: u8) -> usize {
    usize::from(ROWS[usize::from(opcode)])
}

/// Row of [`OPCODES`] for each opcode byte.
const ROWS: [u8; 256] = {
    let mut rows = [OPCODES.len() as u8 - 1; 256];
    let mut row = 0;
    while row < OPCODES.len() {
        if let Some(opcode) = OPCODES[row].0 {
            rows[opcode.to_u8() as usize] = row as u8;
        }
        row += 1;
    }
    rows
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_a_name_of_its_own() {
        let counters = Counters::default();
        let mut names: Vec<_> = counters.fields().map(|(name, _)| name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(CqeSyndrome::ALL.iter().all(|s| SYNDROMES.iter().any(|row| row.0 == *s)));
        assert_eq!(Violation::ALL.map(|v| v as usize), [0, 1, 2, 3]);
    }

    #[test]
    fn counts_come_back_by_name_and_by_code() {
        let mut counters = Counters::default();
        counters.post(0x0a);
        counters.post(0x23);
        counters.error(CqeSyndrome::RemoteAccess);
        counters.violate(Violation::RecordLate);
        let value = |name| counters.fields().find(|f| f.0 == name).map(|f| f.1);
        assert_eq!((counters.posted(SendOpcode::Send), value("posted_other")), (1, Some(1)));
        assert_eq!((value("error_remote_access"), value("doorbell_record_late")), (Some(1), Some(1)));
    }
}
