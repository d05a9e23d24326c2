# An application that rack-attack limits: ten requests of each client (X-Client), and a ban for one that knocks twice at
# /private. WAY and ON_ERROR say how it counts, AHEAD how many seconds its clock is ahead.
require "active_record"
require "rack/attack"
require_relative "../lib/rate_limit_store"

Time.singleton_class.prepend(Module.new { def now(...) = super + ENV.fetch("AHEAD", "0").to_f })
ActiveRecord::Base.legacy_connection_handling = false if ActiveRecord.version < Gem::Version.new("7")

db = {}
if ENV.fetch("WAY") == "active record"
  db = ActiveRecord::Base
  address = { host: ENV.fetch("PGHOST"), port: ENV.fetch("PGPORT") }
  given = { username: ENV.fetch("PGUSER"), database: ENV.fetch("PGDATABASE"), pool: 16 }
  db.establish_connection(adapter: "postgresql", **address, **given)
end
Rack::Attack.cache.store = RateLimitStore.new(db, name: "application", on_error: ENV.fetch("ON_ERROR", "closed").to_sym)

# No window ends while tests run.
ever = 10**9
Rack::Attack.throttle("requests", limit: 10, period: ever) { |request| request.env["HTTP_X_CLIENT"] }
Rack::Attack.blocklist("knocks") do |request|
  Rack::Attack::Fail2Ban.filter(request.env["HTTP_X_CLIENT"], maxretry: 2, findtime: ever, bantime: 3600) do
    request.path == "/private"
  end
end

use Rack::Attack
run ->(_env) { [200, {}, ["hello"]] }
