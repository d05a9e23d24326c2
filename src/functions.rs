//! The SQL functions, each declared beside what it does: the arguments are read and checked, one call
//! is made, its answer becomes a row. What a function is for is said in its COMMENT, and in the README.

mod answers;
mod arguments;
mod builders;
mod rl_calculate;
mod rl_define;
mod rl_headers;
mod rl_limit;
mod rl_limit_all;
mod rl_reset;
mod rl_status;
mod rl_trigger;
