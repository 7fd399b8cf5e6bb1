//! The digest of a config's content, which names its version.
//!
//! Equal content has equal digests, whatever the order of keys. The digest of a Secret is keyed: without the key, a name never
//! helps to guess a value.

use std::collections::BTreeMap;
use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};

/// How much of the digest a version's name carries.
const SHORT_LENGTH: usize = 10;

/// All of a config that a version keeps. It has no `Debug`: it may be secret.
pub struct Content<'a> {
    /// The type of a Secret; empty for a ConfigMap.
    pub secret_type: &'a str,
    pub text: BTreeMap<&'a str, &'a [u8]>,
    /// A ConfigMap's `binaryData`.
    pub binary: BTreeMap<&'a str, &'a [u8]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest(String);

/// The key of this installation's Secret digests.
#[derive(Clone)]
pub struct DigestKey(pub Vec<u8>);

impl DigestKey {
    /// The key of one Secret's digests. With the same for all, whoever may write Secrets of their own could guess what another one holds, and
    /// compare.
    #[must_use]
    pub fn of(&self, namespace: &str, name: &str) -> Self {
        let mut mac = self.mac();
        mac.update(namespace.as_bytes());
        // Neither has a slash in it.
        mac.update(b"/");
        mac.update(name.as_bytes());
        Self(mac.finalize().into_bytes().to_vec())
    }

    /// A key of any length is accepted by HMAC.
    fn mac(&self) -> Hmac<Sha256> {
        Hmac::<Sha256>::new_from_slice(&self.0).unwrap_or_else(|_| unreachable!())
    }
}

impl Digest {
    pub fn of_config_map(content: &Content<'_>) -> Self {
        let mut hash = Sha256::new();
        write(content, &mut |bytes| hash.update(bytes));
        Self(hex(&hash.finalize()))
    }

    pub fn of_secret(content: &Content<'_>, key: &DigestKey) -> Self {
        let mut mac = key.mac();
        write(content, &mut |bytes| mac.update(bytes));
        Self(hex(&mac.finalize().into_bytes()))
    }

    pub fn full(&self) -> &str {
        &self.0
    }

    /// As much of it as a version's name carries. What somebody wrote by hand may be shorter.
    pub fn short(&self) -> &str {
        self.0.get(..SHORT_LENGTH).unwrap_or(&self.0)
    }

    /// The name of the version of `config` that has this content.
    pub fn version_object_name(&self, config: &str) -> String {
        format!("{config}-{}", self.short())
    }
}

impl From<String> for Digest {
    fn from(full: String) -> Self {
        Self(full)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How much of each key's digest is kept: enough to tell one value from the next.
const KEY_LENGTH: usize = 8;

/// A short digest of each key's value; keyed for a Secret.
pub fn key_digests(content: &Content<'_>, key: Option<&DigestKey>) -> crate::keys::KeyDigests {
    let mut digests = crate::keys::KeyDigests::new();
    for (section, prefix) in [(&content.text, &b"text"[..]), (&content.binary, &b"binary"[..])] {
        for (name, value) in section {
            let alone = Content {
                secret_type: "",
                text: BTreeMap::from([(*name, *value), ("", prefix)]),
                binary: BTreeMap::new(),
            };
            let digest = match key {
                Some(key) => Digest::of_secret(&alone, key),
                None => Digest::of_config_map(&alone),
            };
            digests.insert((*name).to_owned(), digest.0[..KEY_LENGTH].to_owned());
        }
    }
    digests
}

/// The longest name of a config whose versions' names are still within Kubernetes' limit.
pub const MAX_CONFIG_NAME_LENGTH: usize = crate::config::MAX_NAME_LENGTH - SHORT_LENGTH - 1;

/// Every part with its length in front, so that no two contents look the same.
fn write(content: &Content<'_>, sink: &mut impl FnMut(&[u8])) {
    let mut part = |bytes: &[u8]| {
        sink(&(bytes.len() as u64).to_be_bytes());
        sink(bytes);
    };
    part(content.secret_type.as_bytes());
    for section in [&content.text, &content.binary] {
        part(&(section.len() as u64).to_be_bytes());
        for (key, value) in section {
            part(key.as_bytes());
            part(value);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content<'a>(text: &[(&'a str, &'a str)], binary: &[(&'a str, &'a str)]) -> Content<'a> {
        let section =
            |pairs: &[(&'a str, &'a str)]| pairs.iter().map(|(key, value)| (*key, value.as_bytes())).collect();
        Content { secret_type: "", text: section(text), binary: section(binary) }
    }

    fn digest(text: &[(&str, &str)], binary: &[(&str, &str)]) -> Digest {
        Digest::of_config_map(&content(text, binary))
    }

    #[test]
    fn the_order_of_keys_does_not_matter() {
        assert_eq!(digest(&[("a", "1"), ("b", "2")], &[]), digest(&[("b", "2"), ("a", "1")], &[]));
    }

    #[test]
    fn every_difference_matters() {
        let all = [
            digest(&[], &[]),
            digest(&[("a", "")], &[]),
            digest(&[("a", "1")], &[]),
            digest(&[], &[("a", "1")]),
            digest(&[("a", "1"), ("b", "2")], &[]),
            digest(&[("a", "1b2")], &[]),
            digest(&[("ab", "1")], &[]),
            Digest::of_config_map(&Content { secret_type: "Opaque", ..content(&[("a", "1")], &[]) }),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(all[index + 1..].iter().all(|other| one != other), "{index}");
        }
    }

    #[test]
    fn a_secret_cannot_be_guessed_without_the_key() {
        let password = content(&[("password", "hunter2")], &[]);
        let (one, other) = (DigestKey(vec![1; 32]), DigestKey(vec![2; 32]));
        assert_ne!(Digest::of_secret(&password, &one), Digest::of_secret(&password, &other));
        let of = |namespace: &str, name: &str| Digest::of_secret(&password, &one.of(namespace, name));
        assert_eq!(of("shop", "db"), of("shop", "db"));
        assert!(of("shop", "db") != of("mine", "db") && of("shop", "db") != of("shop", "guess"));
        assert_ne!(Digest::of_secret(&password, &one), Digest::of_config_map(&password));
        assert_eq!(Digest::of_secret(&password, &one), Digest::of_secret(&password, &one));
    }

    #[test]
    fn what_somebody_wrote_by_hand_is_named_all_the_same() {
        assert_eq!(Digest::from("ü".repeat(3)).version_object_name("app"), "app-üüü");
        assert_eq!(Digest::from("ü".repeat(30)).version_object_name("app"), format!("app-{}", "ü".repeat(5)));
    }

    #[test]
    fn the_longest_config_has_a_version_name_within_the_limit() {
        let name = digest(&[], &[]).version_object_name(&"a".repeat(MAX_CONFIG_NAME_LENGTH));
        assert_eq!(name.len(), crate::config::MAX_NAME_LENGTH);
    }
}
