use super::*;
use crate::profile::Profile;

const PROFILE: &str = include_str!("../../../../bench/data/measured/gpt-1.5b-v100-profile.json");
const LINKS: &str = include_str!("../../../../bench/data/measured/p2p-10gbps.csv");
const MEASURED: &str = include_str!("../../../../bench/data/measured/gpt-1.5b-v100-10gbps.csv");

fn published() -> (Costs, Vec<MeasuredRow>) {
    let profile = Profile::read("profile", PROFILE, Some(("links", LINKS))).unwrap();
    (profile.costs(), read_measured("measured", MEASURED).unwrap())
}

#[test]
fn counted_cuts_are_those_of_the_measured_run() {
    let lengths = |p| -> Vec<u32> { counted_cuts(50, p).unwrap().iter().map(|r| r.len()).collect() };
    // 48 blocks and the head are 49 units; the embedding joins the first stage.
    assert_eq!(lengths(1), [50]);
    assert_eq!(lengths(6), [9, 8, 8, 8, 9, 8]);
    assert_eq!(lengths(8), [7, 6, 6, 6, 6, 6, 7, 6]);
    for p in 1..=49 {
        let cuts = counted_cuts(50, p).unwrap();
        assert!(cuts.len() == p && cuts[0].start == 0 && cuts[p - 1].end == 50);
        assert!(cuts.windows(2).all(|w| w[0].end == w[1].start) && cuts.iter().all(|r| !r.is_empty()));
    }
    assert_eq!(counted_cuts(50, 50), None);
}

#[test]
fn two_constants_fitted_on_half_of_the_published_rows_predict_the_other_half() {
    let (costs, rows) = published();
    let found = calibrate(&costs, &rows, 128, 1, false).unwrap();
    let fitted = found.rows.iter().filter(|r| r.fitted).count();
    assert!(fitted * 2 <= rows.len());
    assert_eq!(
        (found.costs.runtime, found.costs.device.element_bytes),
        (Runtime::Rendezvous, 2)
    );
    let said = format!(
        "median {:.4} worst {:.4} regret {:.4} {:.4} {:?}",
        found.median_error, found.worst_error, found.mean_regret, found.worst_regret, found.costs.calibration
    );
    assert!(found.median_error <= 0.02 && found.worst_error <= 0.05, "{said}");
    assert!(found.mean_regret <= 0.01 && found.worst_regret <= 0.05, "{said}");
    assert!((found.costs.calibration.compute - 0.283).abs() < 0.01, "{said}");
}

#[test]
fn constants_fitted_on_one_pipeline_predict_several() {
    let (costs, rows) = published();
    // Rows with one pipeline stand where they are fitted on, the others where they are judged.
    let (one, many): (Vec<MeasuredRow>, Vec<MeasuredRow>) =
        rows.into_iter().partition(|r| r.data_parallel == 1);
    let mixed: Vec<MeasuredRow> = many
        .into_iter()
        .zip(one)
        .flat_map(|(judged, fitted)| [judged, fitted])
        .collect();
    let found = calibrate(&costs, &mixed, 128, 1, false).unwrap();
    assert!(found.rows.iter().all(|r| r.fitted == (r.row.data_parallel == 1)));
    assert!(
        found.median_error <= 0.025 && found.worst_error <= 0.055,
        "{} {}",
        found.median_error,
        found.worst_error
    );
}

#[test]
fn steps_that_a_model_made_give_its_constants_back() {
    let (mut costs, rows) = published();
    costs.calibration = Calibration {
        compute: 0.7,
        transfer: 1.3,
    };
    let made: Vec<MeasuredRow> = rows[..16]
        .iter()
        .map(|row| {
            let grid = Grid {
                data_parallel: row.data_parallel,
                pipeline_parallel: row.pipeline_parallel,
                global_batch_size: 64,
                micro_batch_size: 2,
            };
            let stages = counted_cuts(50, row.pipeline_parallel).unwrap();
            MeasuredRow {
                step_ms: step_ms(&costs, &grid.shape(&stages)),
                ..*row
            }
        })
        .collect();
    costs.calibration = Calibration::default();
    let found = calibrate(&costs, &made, 64, 2, true).unwrap();
    let Calibration { compute, transfer } = found.costs.calibration;
    assert!(
        (compute - 0.7).abs() < 1e-4 && (transfer - 1.3).abs() < 1e-4,
        "{compute} {transfer}"
    );
    assert!(found.worst_error < 1e-4 && found.worst_regret < 1e-9);
}

#[test]
fn tables_that_cannot_be_used_are_refused_with_line_and_column() {
    let why = |text: &str| read_measured("t.csv", text).unwrap_err().to_string();
    let header = "data_parallel,pipeline_parallel,step_ms\n";
    assert!(why("").starts_with("t.csv: line 1: a column is \"\""));
    assert!(
        why("data_parallel,step_ms\n1,2\n").starts_with("t.csv: line 1: pipeline_parallel is \"missing\"")
    );
    assert!(why(header).starts_with("t.csv: line 2: the table"));
    assert!(why(&format!("{header}1,2,3\n1,2,NaN\n")).starts_with("t.csv: line 3: step_ms is \"NaN\""));
    assert!(why(&format!("{header}1,2,-3\n")).contains("step_ms is \"-3\", allowed is a number above 0"));
    assert!(why(&format!("{header}0,2,3\n")).contains("data_parallel is \"0\""));
    assert!(why(&format!("{header}1,2\n")).starts_with("t.csv: line 2: the row"));
    let (costs, rows) = published();
    assert_eq!(
        calibrate(&costs, &rows[..1], 128, 1, false),
        Err(CalibrateError::Few(1))
    );
    let mut deep = rows[..2].to_vec();
    deep[1].pipeline_parallel = 60;
    let why = calibrate(&costs, &deep, 128, 1, false).unwrap_err().to_string();
    assert_eq!(
        why,
        "line 3: pipeline_parallel is 60, the profile's 50 segments fill at most 49 stages"
    );
}
