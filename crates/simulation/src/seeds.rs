//! Seeds that once found something: they are played again with every test run.

/// `SEED why`, one per line; lines that begin with `#` are comments.
const RECORDED: &str = include_str!("../seeds.txt");

/// All of them, and why each is there.
pub fn recorded() -> Vec<(u64, &'static str)> {
    let lines = RECORDED.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &'static str| {
        let (seed, why) = line.split_once(' ').unwrap_or((line, ""));
        Some((seed.parse().ok()?, why.trim()))
    };
    lines.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_seed_with_a_reason() {
        let lines = RECORDED.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).count();
        assert_eq!(recorded().len(), lines);
        assert!(recorded().iter().all(|(_, why)| !why.is_empty()));
    }
}
