//! Breaches of the protocol by a client.

/// The client broke the protocol. It is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProtocolViolation {
    /// In words that go to the client and to the daemon's log.
    pub(super) why: &'static str,
}

impl ProtocolViolation {
    /// The client named a ticket that it does not hold, or no longer.
    pub(super) const NOT_ITS_OWN: Self = Self {
        why: "it named a block that is not its own",
    };
}

/// Refuses with these words.
pub(super) fn violation<T>(why: &'static str) -> Result<T, ProtocolViolation> {
    Err(ProtocolViolation { why })
}
