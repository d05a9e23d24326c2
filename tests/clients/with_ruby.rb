# The lines of docs/clients.md for Ruby: ruby-pg and Sequel, prepared by setup.sql. with_activerecord.rb is the other.
#
# Connects with libpq's variables, as a role that has EXECUTE on rl_limit, rl_limit_all and rl_check.

require "json"
require "pg"
require "sequel"

CONFIG = JSON.generate({ kind: "fixed window", rate: 3, period: 60_000 })
REQUESTS = JSON.generate([{ name: "quota", key: "ruby" }, { name: "quota", key: "others" }])

def right(what, truth)
  abort "not so: #{what}" unless truth
end

def caught(kind)
  yield
  abort "it passed"
rescue kind => error
  error
end

# 1. ruby-pg. Without a type map each value is a text, and "f" is true.
conn = PG.connect
take = "SELECT ok, retry_after FROM rl_limit('sendMessage', $1, $2)"
right "text", conn.exec_params(take, [40_001, 3]).first == { "ok" => "t", "retry_after" => nil }
right "text", conn.exec_params(take, [40_001, 1]).first["ok"] == "f"
conn.type_map_for_results = PG::BasicTypeMapForResults.new(conn)
denied = conn.exec_params(take, [40_001, 1]).first
right "it is denied", denied["ok"] == false && denied["retry_after"].between?(80_000, 86_400)
right "a config", conn.exec_params("SELECT ok FROM rl_limit('ruby', config => $1)", [CONFIG]).first["ok"] == true
right "requests", conn.exec_params("SELECT ok FROM rl_limit_all($1)", [REQUESTS]).ntuples == 2
error = caught(PG::Error) { conn.exec("SELECT ok FROM rl_limit('sendMessage', '40001', throws => true)") }
right "PT429", error.result.error_field(PG::PG_DIAG_SQLSTATE) == "PT429"
right "DETAIL", JSON.parse(error.result.error_field(PG::PG_DIAG_MESSAGE_DETAIL))["kind"] == "RateLimited"
seconds = conn.exec_params("SELECT rl_fixed_window(3, $1)->'period' AS period", [60]).first
right "a number is seconds", JSON.parse(seconds["period"].to_s) == 60_000

# 2. Sequel. Values become part of the text: a number is a number.
db = Sequel.connect(
  adapter: "postgres", host: ENV["PGHOST"], port: ENV["PGPORT"], user: ENV["PGUSER"], database: ENV["PGDATABASE"]
)
take = "SELECT ok, retry_after FROM rl_limit('sendMessage', :key::text, count => :count)"
right "it passes", db[take, { key: 40_002, count: 3 }].first == { ok: true, retry_after: nil }
right "it is denied", db[take, { key: 40_002, count: 1 }].first[:ok] == false
error = caught(Sequel::DatabaseError) { db["SELECT ok FROM rl_limit('sendMessage', ?)", 40_002].first }
right "no function", error.cause.is_a?(PG::UndefinedFunction)
right "a config", db["SELECT ok FROM rl_limit('ruby', 'b', config => ?)", CONFIG].first[:ok]
right "requests", db["SELECT ok FROM rl_limit_all(?)", REQUESTS].all.size == 2
error = caught(Sequel::DatabaseError) { db["SELECT ok FROM rl_limit('sendMessage', '40002', throws => true)"].all }
right "PT429", error.cause.result.error_field(PG::PG_DIAG_SQLSTATE) == "PT429"
right "DETAIL", JSON.parse(error.cause.result.error_field(PG::PG_DIAG_MESSAGE_DETAIL))["kind"] == "RateLimited"
# A bare call is a text, in both.
[conn.exec("SELECT rl_limit('sendMessage', '40002') AS limit").first["limit"],
 db["SELECT rl_limit('sendMessage', '40002') AS limit"].first[:limit]].each do |bare|
  right "a text", bare.is_a?(String) && bare.start_with?("(f,")
end
