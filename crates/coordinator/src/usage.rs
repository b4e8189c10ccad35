//! CPU seconds, as the kernel counts them.

use std::path::Path;

use ringfence_env::{Read, World};

/// CPU seconds of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cpu {
    /// Its own.
    pub(crate) own_s: f64,
    /// Those of its descendants that were waited for.
    pub(crate) reaped_s: f64,
}

/// What process `pid` used so far; `None` if it is gone.
pub(crate) fn of_process(world: &World, pid: u32) -> Option<Cpu> {
    let Ok(Read::Bytes(bytes)) = world.fs.read(Path::new(&format!("/proc/{pid}/stat")), 16 << 10)
    else {
        return None;
    };
    #[expect(clippy::cast_precision_loss, reason = "a hundred or so")]
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    parse(&String::from_utf8_lossy(&bytes), ticks)
}

/// What this process used so far.
pub(crate) fn of_self(world: &World) -> Cpu {
    of_process(world, std::process::id()).unwrap_or_default()
}

/// The children of this process that have not been reaped.
pub(crate) fn children_of_self(world: &World) -> Vec<u32> {
    let own = std::process::id().to_string();
    let Ok(names) = world.fs.list(Path::new("/proc")) else { return Vec::new() };
    names
        .into_iter()
        .filter_map(|entry| {
            let pid: u32 = entry.name.to_str()?.parse().ok()?;
            let path = format!("/proc/{pid}/stat");
            let Ok(Read::Bytes(stat)) = world.fs.read(Path::new(&path), 16 << 10) else {
                return None;
            };
            let stat = String::from_utf8_lossy(&stat).into_owned();
            let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?;
            (parent == own).then_some(pid)
        })
        .collect()
}

fn parse(stat: &str, ticks: f64) -> Option<Cpu> {
    // The name may hold any character; the state follows its last parenthesis.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<f64> =
        rest.split(' ').skip(11).take(4).filter_map(|f| f.parse().ok()).collect();
    let [user, system, reaped_user, reaped_system] = *fields.as_slice() else { return None };
    Some(Cpu { own_s: (user + system) / ticks, reaped_s: (reaped_user + reaped_system) / ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_times_stand_after_the_name_whatever_it_is() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 300 100 20 0";
        assert_eq!(parse(stat, 100.0), Some(Cpu { own_s: 2.0, reaped_s: 4.0 }));
        assert_eq!(parse("7 (a", 100.0), None);
        assert!(of_process(&World::system(), std::process::id()).is_some());
    }
}
