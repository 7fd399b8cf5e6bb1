//! Where the time of the tests went.

use std::collections::BTreeMap;
use std::time::Duration;

use super::pool::Outcome;
use crate::progress::shown;

const SLOWEST: usize = 10;

/// By file, and the slowest ones.
pub(super) fn tables(results: &[Outcome]) -> String {
    let mut files: BTreeMap<&str, (usize, Duration)> = BTreeMap::new();
    for result in results {
        let (count, time) = files.entry(&result.file).or_default();
        *count += 1;
        *time += result.took;
    }
    let by_file =
        files.iter().map(|(name, (count, time))| format!("  {name:<12} {count:>4} tests {:>14}\n", shown(*time)));
    let mut slowest: Vec<&Outcome> = results.iter().collect();
    slowest.sort_by_key(|result| std::cmp::Reverse(result.took));
    let slowest = slowest
        .iter()
        .take(SLOWEST)
        .map(|result| format!("  {:>14}  {}: {}\n", shown(result.took), result.file, result.name));
    format!(
        "\nTime by file (tests run side by side)\n{}\nThe slowest {SLOWEST}\n{}",
        by_file.collect::<String>(),
        slowest.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_add_up_by_file_and_the_slowest_comes_first() {
        let result = |file: &str, name: &str, seconds| Outcome {
            file: file.into(),
            name: name.into(),
            took: Duration::from_secs(seconds),
            has_passed: true,
        };
        let text = tables(&[result("pins", "a", 20), result("pins", "b", 70), result("cli", "c", 30)]);
        assert!(text.contains("pins            2 tests     1 min 30 s"), "{text}");
        let position = |name: &str| text.find(name).unwrap();
        assert!(position("pins: b") < position("cli: c"), "{text}");
    }
}
