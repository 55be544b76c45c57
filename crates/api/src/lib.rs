//! VarunaJob types and the job-file parser.
