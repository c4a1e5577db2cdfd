//! States of a connection, and which message each one takes.
//!
//! IBTA vol. 1 §12.9 (states of communication establishment) has more: states that wait only for the program
//! are one here.

/// Where a connection stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum State {
    /// REQ sent, no answer yet.
    #[default]
    ReqSent,
    /// The other end has the REQ and takes its time.
    ReqAcknowledged,
    /// REQ received; the program is to answer.
    ReqReceived,
    /// REQ received, and the program has asked for more time: a repeated REQ gets an MRA.
    ReqPostponed,
    /// REP sent, no answer yet.
    RepSent,
    /// The other end has the REP and takes its time.
    RepAcknowledged,
    /// REP received; the program is to say that it is ready.
    RepReceived,
    /// It stands.
    Established,
    /// DREQ sent, no answer yet.
    DreqSent,
    /// DREQ received; the program is to answer.
    DreqReceived,
    /// It is over, and its names are not given again yet.
    TimeWait,
    /// SIDR_REQ sent, no answer yet.
    SidrReqSent,
    /// SIDR_REQ received; the program is to answer.
    SidrReqReceived,
}

impl State {
    /// A REP answers what was sent: we ask.
    pub const fn takes_rep(self) -> bool {
        matches!(self, Self::ReqSent | Self::ReqAcknowledged)
    }

    /// An RTU answers what was sent.
    pub(super) const fn takes_rtu(self) -> bool {
        matches!(self, Self::RepSent | Self::RepAcknowledged)
    }

    /// A DREQ ends it.
    pub(super) const fn takes_dreq(self) -> bool {
        matches!(self, Self::RepSent | Self::RepAcknowledged | Self::Established | Self::DreqSent)
    }

    /// A DREP answers what was sent, or crosses an answer of ours.
    pub(super) const fn takes_drep(self) -> bool {
        matches!(self, Self::DreqSent | Self::DreqReceived)
    }

    /// A REJ ends it before it stood.
    pub(super) const fn takes_rej(self) -> bool {
        self.takes_rep() || self.may_accept() || self.takes_rtu()
    }

    /// A REJ ends it, and it may have stood on one side: its names rest.
    pub(super) const fn rests_after_rej(self) -> bool {
        matches!(self, Self::RepReceived | Self::Established | Self::DreqSent)
    }

    /// The program may answer the REQ.
    pub(super) const fn may_accept(self) -> bool {
        matches!(self, Self::ReqReceived | Self::ReqPostponed)
    }

    /// The program may end it, or answer the other end's wish to.
    pub(super) const fn may_disconnect(self) -> bool {
        matches!(self, Self::Established | Self::DreqReceived)
    }

    /// The program may refuse what came, or take back what it sent.
    pub const fn may_reject(self) -> bool {
        self.takes_rej() || matches!(self, Self::RepReceived)
    }
}
