//! `--smoke`: two points a series at most, once each, to see that a figure's command works.

use experiment::Spec;
use experiment::spec::Extent;

use super::serving;

/// Two points judge no claim. Of a server's series, `gpu-LINE-MODEL`, the first model's stay without the
/// variants, `gpu-LINE+VARIANT-MODEL`: each starts its own server.
pub fn shorten(spec: &mut Spec) {
    spec.judges.clear();
    spec.claims.clear();
    if ![serving::APP, serving::time::APP].contains(&spec.app.as_str()) {
        return;
    }
    let model = |series: &str| series.splitn(3, '-').nth(2).map(str::to_owned);
    let first = spec.grid(Extent::Smoke).series.first().and_then(|series| model(series));
    // The kernel that stays is too slow on the host twin.
    spec.keep(|series| model(series) == first && !series.contains('+') && !series.contains("-persistent-"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::experiments;

    #[test]
    fn every_figure_has_at_most_two_points_a_series_and_those_of_a_server_one_model() {
        for (figure, series) in
            [("fig1", None), ("fig2", None), ("fig3", Some(2)), ("fig6", Some(5)), ("fig7", Some(4))]
        {
            let mut spec = Spec::read(&experiments().join(figure)).unwrap();
            shorten(&mut spec);
            assert!(spec.judges.is_empty() && spec.claims.is_empty(), "{figure}");
            let grid = spec.grid(Extent::Smoke);
            if let Some(series) = series {
                assert_eq!(grid.series.len(), series, "{figure}: {:?}", grid.series);
            }
            for name in &grid.series {
                let points = grid.keys().iter().filter(|key| key.series == *name).count();
                assert!((1..=2).contains(&points), "{figure}: {points} points of {name}");
            }
        }
    }
}
