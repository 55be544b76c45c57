use super::*;
use crate::measured_table::read_measured;
use crate::profile_table::read_profile;
use varuna_plan::calibrate::CalibrateError;

const PROFILE: &str = include_str!("../../../data/measured/gpt-1.5b-v100-published.json");
const LINKS: &str = include_str!("../../../data/measured/p2p-10gbps.csv");
const MEASURED: &str = include_str!("../../../data/measured/gpt-1.5b-v100-10gbps.csv");

fn published() -> (Profile, Vec<MeasuredRow>) {
    let profile = read_profile("profile", PROFILE, Some(("links", LINKS))).unwrap();
    (profile, read_measured("measured", MEASURED).unwrap())
}

#[test]
fn constants_fitted_on_half_of_the_rows_predict_the_other_half() {
    let (profile, rows) = published();
    let table = calibrate_by_table(&profile.costs(), &rows, 128, 1).unwrap();
    let found = &table.calibrated;
    let fitted = found.runs.iter().filter(|r| r.fitted).count();
    assert!(fitted * 2 <= rows.len());
    assert_eq!(
        (found.costs.runtime, found.costs.device.element_bytes),
        (Runtime::Rendezvous, 2)
    );
    let said = format!(
        "median {:.4} worst {:.4} regret {:.4} {:.4} {:?}",
        found.median_error, found.worst_error, table.mean_regret, table.worst_regret, found.costs.calibration
    );
    assert!(found.median_error <= 0.02 && found.worst_error <= 0.05, "{said}");
    assert!(table.mean_regret <= 0.01 && table.worst_regret <= 0.05, "{said}");
    assert!((found.costs.calibration.compute - 0.283).abs() < 0.01, "{said}");
}

#[test]
fn constants_fitted_on_one_pipeline_predict_several() {
    let (profile, rows) = published();
    // The constants are fitted to the rows with one pipeline, and judged by the others.
    let (one, many): (Vec<MeasuredRow>, Vec<MeasuredRow>) =
        rows.into_iter().partition(|r| r.data_parallel == 1);
    let mixed: Vec<MeasuredRow> = many
        .into_iter()
        .zip(one)
        .flat_map(|(judged, fitted)| [judged, fitted])
        .collect();
    let found = calibrate_by_table(&profile.costs(), &mixed, 128, 1)
        .unwrap()
        .calibrated;
    assert!(
        found
            .runs
            .iter()
            .all(|r| r.fitted == (r.run.shape.pipelines.len() == 1))
    );
    assert!(
        found.median_error <= 0.025 && found.worst_error <= 0.055,
        "{} {}",
        found.median_error,
        found.worst_error
    );
}

#[test]
fn calibrated_profile_gives_the_calibrated_costs_exactly() {
    let (profile, rows) = published();
    let costs = calibrate_by_table(&profile.costs(), &rows, 128, 1)
        .unwrap()
        .calibrated
        .costs;
    let text = serde_json::to_string(&calibrated_profile(profile, &costs)).unwrap();
    assert_eq!(Profile::read("profile", &text, None).unwrap().costs(), costs);
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
    let (profile, rows) = published();
    assert_eq!(
        calibrate_by_table(&profile.costs(), &rows[..1], 128, 1),
        Err(CalibrateError::Few(1).into())
    );
    let mut deep = rows[..2].to_vec();
    deep[1].pipeline_parallel = 60;
    let why = calibrate_by_table(&profile.costs(), &deep, 128, 1)
        .unwrap_err()
        .to_string();
    assert_eq!(
        why,
        "line 3: pipeline_parallel is 60, the profile's 50 segments fill at most 49 stages"
    );
}
