//! Cores of each server thread while it serves: a point's number `thread NAME`, which recorded rows keep.

use experiment::point::Point;
use experiment::table::{Row, number};

use crate::figure::cpu::{DRIVER, NIC, ProcessUse};

/// Begin of the numbers' names.
const THREAD: &str = "thread ";

/// Puts them into a point.
pub fn fill(point: &mut Point, serving: &ProcessUse) {
    let cores = |seconds: f64| seconds / serving.seconds.max(1e-9);
    let all = serving.by_name.iter().map(|(name, seconds)| (format!("{THREAD}{name}"), cores(*seconds)));
    point.values.extend(all);
}

/// The program or library that owns a thread of that name.
fn owner(name: &str) -> &'static str {
    match name {
        nic if nic.starts_with(NIC) => "NIC",
        driver if driver.starts_with(DRIVER) => "GPU driver",
        _ => "server",
    }
}

/// A line for each thread of each row: series, thread, the part that has it, median of its cores, least and
/// most. Titles come first; they stand alone if no thread was counted.
pub fn table(rows: &[Row]) -> Vec<Vec<String>> {
    let mut table = vec![["series", "thread", "of", "cores", "range"].map(str::to_owned).to_vec()];
    for row in rows {
        for (name, [median, least, most]) in &row.values {
            let Some(name) = name.strip_prefix(THREAD) else { continue };
            let [median, least, most] = [median, least, most].map(|cores| number(Some(*cores)));
            let range = format!("{least}–{most}");
            table.push(vec![row.series.clone(), name.to_owned(), owner(name).to_owned(), median, range]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use experiment::point::example;
    use experiment::table::rows;

    use super::*;

    #[test]
    fn a_row_keeps_the_median_of_each_thread_and_the_nic_s_are_told_apart() {
        let point = |repetition, server: f64, nic: f64| {
            let names = [("inference-serve", server), ("softnic-nic", nic), ("cuda-EvtHandlr", 0.0)];
            let by_name = names.into_iter().map(|(name, seconds)| (name.to_owned(), seconds)).collect();
            let used = ProcessUse { seconds: 10.0, by_name, ..ProcessUse::default() };
            let mut point = Point { repetition, ..example("gpu-event-squeezenet-1.1", 0) };
            fill(&mut point, &used);
            point
        };
        let rows = rows(&[point(0, 0.5, 9.0), point(1, 1.0, 11.0), point(2, 2.0, 10.0)]);
        let lines: Vec<String> = table(&rows).iter().map(|line| line.join(" | ")).collect();
        let series = "gpu-event-squeezenet-1.1";
        assert_eq!(
            lines[1..],
            [
                format!("{series} | cuda-EvtHandlr | GPU driver | 0.00 | 0.00–0.00"),
                format!("{series} | inference-serve | server | 0.10 | 0.050–0.20"),
                format!("{series} | softnic-nic | NIC | 1.00 | 0.90–1.10"),
            ]
        );
        assert_eq!(table(&rows[..0]).len(), 1);
    }
}
