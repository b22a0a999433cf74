//! Store URLs: `scheme://host?option=value&...`.

use crate::OpenError;

/// A URL taken apart. Options are taken out one by one; what is left over was unknown.
#[derive(Debug)]
pub struct StoreUrl {
    /// What stands before `://`.
    pub scheme: String,
    /// What stands between `://` and `?`, without a slash at its end.
    pub host: String,
    options: Vec<(String, String)>,
}

impl StoreUrl {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// [`OpenError::Config`]: no URL, or an option twice.
    pub fn parse(url: &str) -> Result<Self, OpenError> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(config(format!(
                "{url:?} is no store URL; write for example \"embedded://\" or \"embedded://?capacity=4GiB\""
            )));
        };
        let (host, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options: Vec<(String, String)> = Vec::new();
        // A plus is a plus here: it joins faults, and a URL has no spaces.
        let query = query.replace('+', "%2B");
        for (name, value) in form_urlencoded::parse(query.as_bytes()).into_owned() {
            if options.iter().any(|(known, _)| *known == name) {
                return Err(config(format!(
                    "option {name:?} stands twice in {url:?}; write it once"
                )));
            }
            options.push((name, value));
        }
        Ok(Self {
            scheme: scheme.to_owned(),
            host: host.trim_end_matches('/').to_owned(),
            options,
        })
    }

    /// Takes an option's value out.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let at = self.options.iter().position(|(known, _)| known == name)?;
        Some(self.options.remove(at).1)
    }

    /// Every option has been taken, or it is an error that names it.
    ///
    /// # Errors
    /// [`OpenError::Config`] with the option and those that are `known`.
    pub fn finish(self, known: &str) -> Result<(), OpenError> {
        match self.options.first() {
            None => Ok(()),
            Some((name, _)) => Err(config(format!(
                "{}:// has no option {name:?}; known are {known}",
                self.scheme
            ))),
        }
    }
}

pub(crate) fn config(message: String) -> OpenError {
    OpenError::Config { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_comes_apart() {
        let mut url =
            StoreUrl::parse("embedded://?capacity=4%20GiB&registration=pinned&faults=slow:1ms+lose:0.1").unwrap();
        assert_eq!(url.take("faults").as_deref(), Some("slow:1ms+lose:0.1"));
        assert_eq!((url.scheme.as_str(), url.host.as_str()), ("embedded", ""));
        assert_eq!(url.take("capacity").as_deref(), Some("4 GiB"));
        let error = url.finish("capacity").unwrap_err().to_string();
        assert!(error.contains("registration") && error.contains("capacity"), "{error}");
    }

    #[test]
    fn what_is_no_url_is_told_what_one_looks_like() {
        for text in ["", "embedded", "embedded:/x"] {
            assert!(
                StoreUrl::parse(text).unwrap_err().to_string().contains("embedded://"),
                "{text}"
            );
        }
        assert!(
            StoreUrl::parse("embedded://?a=1&a=2")
                .unwrap_err()
                .to_string()
                .contains("twice")
        );
    }
}
