//! An error in one line, for messages.
use std::error::Error;

/// The message of `error`, then those of its causes. A cause that the text already says is left out.
pub fn chained(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CloseError, Fault, FaultKind};
    use std::io;

    #[test]
    fn each_cause_is_said_once() {
        let fault = Fault::new(FaultKind::Refused, 7, "the device is gone");
        let closing = CloseError::Failed {
            source: Box::new(fault.clone()),
        };
        assert_eq!(chained(&fault), fault.to_string());
        assert_eq!(chained(&closing), format!("{closing}: {fault}"));
        // An error of another library repeats its cause.
        let repeating = io::Error::other(closing);
        assert_eq!(chained(&repeating).matches("the device is gone").count(), 1);
    }
}
