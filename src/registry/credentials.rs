//! Credential files: the configuration names them, one mounted directory holds them.
//!
//! A file is read whenever it is needed: it is small, and so a changed one counts with the next call, however it was changed.
//!
//! Invariant: a name leads to a file of that directory and nowhere else; it is never a path.
//! Absent on purpose: the environment's usual chain (AWS, whose SDK reads it).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::reconcile::OpenError;
use crate::registry::CallError;
use crate::registry::text::bounded;

/// A token, a certificate or a key is never larger.
const LARGEST: u64 = 1024 * 1024;

/// A credential file of the directory.
#[derive(Clone, Debug)]
pub struct Credential {
    name: Arc<str>,
    path: PathBuf,
}

impl Credential {
    /// The file `name` of `directory`, for `registry`. It need not be there yet.
    pub fn new(directory: &Path, registry: &Arc<str>, name: &str) -> Result<Self, OpenError> {
        let plain = !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', '\0']);
        if !plain {
            let reason =
                format!("{} is no name of a credential file; name a file of the credentials directory, without a path", bounded(name));
            return Err(OpenError::Unusable { name: registry.clone(), reason });
        }
        Ok(Self { name: name.into(), path: directory.join(name) })
    }

    /// What the file holds now.
    pub async fn read(&self) -> Result<Vec<u8>, CallError> {
        let unreadable =
            |error: std::io::Error| CallError::Unavailable(format!("the credential file {} cannot be read: {error}", self.name));
        let size = tokio::fs::metadata(&self.path).await.map_err(unreadable)?.len();
        if size > LARGEST {
            return Err(CallError::Unavailable(format!("the credential file {} is larger than {LARGEST} bytes", self.name)));
        }
        tokio::fs::read(&self.path).await.map_err(unreadable)
    }

    /// The one line that the file holds now.
    pub async fn read_token(&self) -> Result<String, CallError> {
        let text = String::from_utf8(self.read().await?).unwrap_or_default();
        let token = text.trim();
        if token.is_empty() || token.chars().any(|one| !one.is_ascii_graphic()) {
            return Err(CallError::Unavailable(format!("the credential file {} does not hold one line with a token", self.name)));
        }
        Ok(token.to_owned())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("")]
    #[case("..")]
    #[case("../secret")]
    #[case("/etc/passwd")]
    #[case("a\\b")]
    fn a_path_is_no_name(#[case] name: &str) {
        let opened = Credential::new(Path::new("/credentials"), &"edge".into(), name);
        assert!(matches!(opened, Err(OpenError::Unusable { .. })), "{name:?}");
    }

    #[test]
    fn a_name_stays_in_the_directory() {
        let credential = Credential::new(Path::new("/credentials"), &"edge".into(), "first-token").unwrap();
        assert_eq!(credential.path, Path::new("/credentials/first-token"));
    }
}
