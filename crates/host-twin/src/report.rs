//! Where lanes wait, in words.

use std::collections::BTreeMap;
use std::fmt;

use crate::site::Site;

/// Lanes of one block at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Their block.
    pub block: usize,
    /// Their numbers in it (`threadIdx.x`).
    pub lanes: Vec<usize>,
    /// What they wait at, or did last: `__syncwarp`, `a load`.
    pub what: &'static str,
    /// `file.cu:12`.
    pub place: String,
    /// The mask that they gave, where the intrinsic takes one.
    pub mask: Option<u32>,
    /// Whether they wait there for other lanes; else they run, and that is what they did last.
    pub held: bool,
}

/// Where one lane is: block, lane, place, mask, held.
pub(crate) type At = (usize, usize, Site, Option<u32>, bool);

/// All lanes that have not ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waits(pub Vec<Waiting>);

impl Waits {
    pub(crate) fn of(lanes: impl Iterator<Item = At>) -> Waits {
        let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (block, lane, site, mask, held) in lanes {
            groups.entry((block, site.what, site.place(), mask, held)).or_default().push(lane);
        }
        let waiting = |((block, what, place, mask, held), lanes): (_, Vec<usize>)| {
            let what: crate::site::LaneAction = what;
            Waiting { block, lanes, what: what.name(), place, mask, held }
        };
        Waits(groups.into_iter().map(waiting).collect())
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return write!(f, "nothing is known of them");
        }
        for (index, waiting) in self.0.iter().enumerate() {
            let before = if index > 0 { "; " } else { "" };
            let verb = if waiting.held { "wait at" } else { "last did" };
            write!(
                f,
                "{before}block {} lanes {} {verb} {}",
                waiting.block,
                ranges(&waiting.lanes),
                waiting.what
            )?;
            if let Some(mask) = waiting.mask {
                write!(f, " of mask {mask:#010x}")?;
            }
            write!(f, " ({})", waiting.place)?;
        }
        Ok(())
    }
}

/// Ascending numbers as `0-30,32`.
fn ranges(numbers: &[usize]) -> String {
    let mut text: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match text.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => text.push((number, number)),
        }
    }
    let one = |(first, last): (usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    text.into_iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::LaneAction;

    #[test]
    fn lanes_of_one_place_are_one_phrase() {
        let site = Site::nowhere;
        let lanes = (0..31)
            .map(|lane| (1, lane, site(LaneAction::SyncWarp), Some(u32::MAX), true))
            .chain([(1, 33, site(LaneAction::SyncWarp), Some(u32::MAX), true)])
            .chain([(0, 2, site(LaneAction::Load), None, false)]);
        assert_eq!(
            Waits::of(lanes).to_string(),
            "block 0 lanes 2 last did a load (the kernel's beginning); block 1 lanes 0-30,33 wait at __syncwarp of mask \
             0xffffffff (the kernel's beginning)"
        );
    }
}
