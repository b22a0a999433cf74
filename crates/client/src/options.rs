//! Settings of a store.

use crate::OpenError;
use std::time::Duration;
use tensorlease_memory::{ForkPolicy, limits};

/// Readers beyond this bring nothing on any machine and only cost memory.
const READERS_MAX: u32 = 256;
/// Keys carry the namespace; a longer one would dominate them.
const NAMESPACE_BYTES_MAX: usize = 1024;
/// In `auto`, smaller values are copied out: their blocks would cost more than the copy.
const AUTO_LEASED_BYTES_MIN: u64 = 16 << 10;

/// How bytes reach the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Leased while the budget lasts; small values, and what the budget can't hold, the cheaper other way.
    #[default]
    Auto,
    /// The value owns its block of the arena. Past the budget: a counted fallback (an error under `strict`).
    Leased,
    /// Copied out into recycled memory that is not registered.
    Copied,
    /// The baseline of the benchmarks, the algorithm that `TransferQueue`'s client has today: batches of 400 keys; per
    /// dtype one fresh allocation, one registration, one transfer, unregister.
    RegisterPerCall,
}

impl Delivery {
    /// Every delivery there is.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Leased, Self::Copied, Self::RegisterPerCall];

    /// The name in URLs, arguments and benchmarks.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Leased => "leased",
            Self::Copied => "copied",
            Self::RegisterPerCall => "register-per-call",
        }
    }

    /// The delivery of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Is a value that gets no lease a fallback?
    pub(crate) fn asks_for_leases(self) -> bool {
        match self {
            Self::Leased => true,
            Self::Auto | Self::Copied | Self::RegisterPerCall => false,
        }
    }

    /// Is a copy that lands in fresh memory, outside the copy cache, a fallback?
    pub(crate) fn asks_for_copies(self) -> bool {
        match self {
            Self::Copied => true,
            Self::Auto | Self::Leased | Self::RegisterPerCall => false,
        }
    }

    /// How long a value must be to be leased. None: none is.
    pub(crate) fn leased_bytes_min(self) -> Option<u64> {
        match self {
            Self::Leased => Some(0),
            Self::Auto => Some(AUTO_LEASED_BYTES_MIN),
            Self::Copied | Self::RegisterPerCall => None,
        }
    }
}

/// Settings of [`Store::open`](crate::Store::open).
#[derive(Clone, Debug)]
pub struct Options {
    /// Bound of the arena, bytes. Default 1 GiB.
    pub max_bytes: u64,
    /// Part of it kept for copied reads and write staging. Default an eighth, at least 8 MiB.
    pub bounce_bytes: Option<u64>,
    /// Bound of the recycled memory that copies land in. Default half of `max_bytes`.
    pub copy_cache_bytes: Option<u64>,
    /// Most bytes that may be quarantined. Default `max_bytes`.
    pub quarantine_bytes: Option<u64>,
    /// Threads that run engine calls, 1 to 256. Default 4.
    pub readers: u32,
    /// Default of reads that don't say.
    pub delivery: Delivery,
    /// Every fallback is an error that names it.
    pub strict: bool,
    /// Prefix of all keys, which ends with `/` (one is added if need be); `clear` empties it alone, with the namespaces inside it.
    pub namespace: String,
    /// Bytes of slabs made at open. Default 0: the first slab only.
    pub prewarm_bytes: u64,
    /// Keys of one batch of `register-per-call`, and of reads through an engine's own pool. Default 400.
    pub batch_keys: u32,
    /// Tries after the first, for faults that pass. Default 3.
    pub retries: u32,
    /// What a forked child sees of the arena. Default `None`: `Exclude` where the arena's memory is shared with other processes (`host://`),
    /// which allows nothing else, and `Inherit` elsewhere.
    pub fork: Option<ForkPolicy>,
    /// Bound of a call that names none. Default 600 s.
    pub call_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_bytes: 1 << 30,
            bounce_bytes: None,
            copy_cache_bytes: None,
            quarantine_bytes: None,
            readers: 4,
            delivery: Delivery::Auto,
            strict: false,
            namespace: String::new(),
            prewarm_bytes: 0,
            batch_keys: 400,
            retries: 3,
            fork: None,
            call_timeout: Duration::from_secs(600),
        }
    }
}

impl Options {
    /// What can be checked without looking at the machine. Opening does it too, after the engine is there.
    ///
    /// # Errors
    /// [`OpenError::Config`] names the option and what is allowed.
    pub fn check(&self) -> Result<(), OpenError> {
        let config = |message: String| Err(OpenError::Config { message });
        if !(1..=READERS_MAX).contains(&self.readers) {
            return config(format!(
                "readers={} is out of range; allowed are 1 to {READERS_MAX}",
                self.readers
            ));
        }
        if self.namespace.len() > NAMESPACE_BYTES_MAX {
            let len = self.namespace.len();
            return config(format!(
                "namespace has {len} bytes; allowed are up to {NAMESPACE_BYTES_MAX}"
            ));
        }
        let page = limits::page_bytes() as u64;
        if self.max_bytes < page {
            return config(format!(
                "max_bytes={} is less than one page; give at least {page}",
                self.max_bytes
            ));
        }
        if self.prewarm_bytes > self.max_bytes {
            let (prewarm, max) = (self.prewarm_bytes, self.max_bytes);
            return config(format!(
                "prewarm={prewarm} is more than max_bytes={max}; lower it or raise max_bytes"
            ));
        }
        if self.bounce_bytes.is_some_and(|bounce| bounce > self.max_bytes) {
            return config(format!(
                "bounce_bytes={} is more than max_bytes={}; lower it",
                self.bounce_bytes.unwrap_or(0),
                self.max_bytes
            ));
        }
        if self.batch_keys == 0 {
            return config("batch_keys=0 is out of range; give at least 1".to_owned());
        }
        if self.call_timeout.is_zero() {
            return config("call_timeout must be longer than 0 s".to_owned());
        }
        Ok(())
    }
}

/// Bytes of `"1GiB"`, `"64 MiB"`, `"1.5GB"`, `"4096"`: binary and decimal units, case ignored.
///
/// # Errors
/// What is allowed, in words.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 11] = [
        ("tib", 1 << 40),
        ("gib", 1 << 30),
        ("mib", 1 << 20),
        ("kib", 1 << 10),
        ("tb", 1_000_000_000_000),
        ("gb", 1_000_000_000),
        ("mb", 1_000_000),
        ("kb", 1_000),
        ("b", 1),
        ("bytes", 1),
        ("", 1),
    ];
    let allowed =
        || format!("{text:?} is no size; write bytes or a number with a unit, for example \"512MiB\" or \"1.5GB\"");
    let lower = text.trim().to_ascii_lowercase();
    let number_end = lower
        .find(|character: char| !(character.is_ascii_digit() || character == '.'))
        .unwrap_or(lower.len());
    let (number, unit) = lower.split_at(number_end);
    let unit = UNITS
        .iter()
        .find(|(name, _)| *name == unit.trim())
        .ok_or_else(allowed)?
        .1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 9 || number.ends_with('.') || fraction.contains('.') {
        return Err(allowed());
    }
    let whole = whole
        .parse::<u64>()
        .map_err(|_| allowed())?
        .checked_mul(unit)
        .ok_or_else(allowed)?;
    if fraction.is_empty() {
        return Ok(whole);
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| allowed())?);
    let part = fraction.parse::<u128>().map_err(|_| allowed())? * u128::from(unit) / scale;
    u64::try_from(part)
        .ok()
        .and_then(|part| whole.checked_add(part))
        .ok_or_else(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("1GiB", 1 << 30),
            ("64 MiB", 64 << 20),
            ("1.5GB", 1_500_000_000),
            (" 0.5 kib ", 512),
            ("7b", 7),
            ("64 bytes", 64),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "GiB",
            "-1",
            "1.2.3GB",
            "1.",
            "1 GiBs",
            "99999999999TiB",
            "1e9",
            "0x10",
            "١",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn each_delivery_has_a_name_of_its_own() {
        for delivery in Delivery::ALL {
            assert_eq!(Delivery::from_name(delivery.name()), Some(delivery));
        }
        assert_eq!(Delivery::from_name("Leased"), None);
    }

    #[test]
    fn options_out_of_range_name_themselves() {
        type Spoil = fn(&mut Options);
        let cases: [(&str, Spoil); 5] = [
            ("batch_keys", |it| it.batch_keys = 0),
            ("readers", |it| it.readers = 0),
            ("prewarm", |it| it.prewarm_bytes = it.max_bytes + 1),
            ("bounce_bytes", |it| it.bounce_bytes = Some(u64::MAX)),
            ("namespace", |it| it.namespace = "n".repeat(2000)),
        ];
        for (name, spoil) in cases {
            let mut options = Options::default();
            spoil(&mut options);
            assert!(options.check().unwrap_err().to_string().contains(name), "{name}");
        }
    }
}
