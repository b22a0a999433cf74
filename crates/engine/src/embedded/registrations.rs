//! Memory known to the engine: pinned in the kernel, or only counted.
use crate::{CloseError, RegisterError};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tensorlease_memory::Region;
use tensorlease_memory::pin::{PinError, Pinner};

/// Registered memory of one engine.
#[derive(Debug)]
pub(super) enum Registrations {
    /// Any memory will do; bytes are counted so that the calls can be seen.
    Counted { bytes: AtomicU64 },
    /// Transfers need memory inside one pinned region.
    Pinned(Box<Pinner>),
}

impl Registrations {
    pub(super) fn counted() -> Self {
        Self::Counted {
            bytes: AtomicU64::new(0),
        }
    }

    pub(super) fn pinned() -> Result<Self, RegisterError> {
        let pinner = Pinner::new().map_err(|error| RegisterError::Unsupported {
            source: Box::new(error),
        })?;
        Ok(Self::Pinned(Box::new(pinner)))
    }

    pub(super) fn register(&self, region: Region) -> Result<(), RegisterError> {
        match self {
            Self::Counted { bytes } => {
                bytes.fetch_add(region.len as u64, Relaxed);
                Ok(())
            }
            Self::Pinned(pinner) => pinner.pin(region).map_err(|error| in_contract_terms(region, error)),
        }
    }

    pub(super) fn unregister(&self, region: Region) -> Result<(), RegisterError> {
        match self {
            Self::Counted { bytes } => {
                // More unregistered than registered is a caller's slip that costs nothing here: the count stops at 0.
                let less = |now: u64| Some(now.saturating_sub(region.len as u64));
                let _always_some = bytes.fetch_update(Relaxed, Relaxed, less);
                Ok(())
            }
            Self::Pinned(pinner) => pinner.unpin(region).map_err(|error| in_contract_terms(region, error)),
        }
    }

    /// May a transfer use this memory?
    pub(super) fn allows(&self, region: Region) -> bool {
        match self {
            Self::Counted { .. } => true,
            Self::Pinned(pinner) => pinner.covers(region),
        }
    }

    /// Bytes registered now.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Counted { bytes } => bytes.load(Relaxed),
            Self::Pinned(pinner) => pinner.pinned_bytes(),
        }
    }

    /// Unpins whatever is still registered; the first failure is reported after all were tried.
    pub(super) fn close(self) -> Result<(), CloseError> {
        match self {
            Self::Counted { .. } => Ok(()),
            Self::Pinned(pinner) => pinner.unpin_all().map_err(|first| CloseError::Failed {
                source: Box::new(first),
            }),
        }
    }
}

fn in_contract_terms(region: Region, error: PinError) -> RegisterError {
    match error {
        PinError::Overlap { .. } => RegisterError::Overlap { addr: region.addr },
        PinError::TooLarge { len, limit } => RegisterError::TooLarge {
            len,
            limit: limit as u64,
        },
        PinError::Unknown { .. } => RegisterError::Unknown { addr: region.addr },
        other => RegisterError::Failed {
            len: region.len,
            source: Box::new(other),
        },
    }
}
