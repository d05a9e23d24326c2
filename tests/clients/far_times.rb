# Times after the year 9999 in Ruby: pg and Sequel, in time zones on both sides of UTC.
#
# Reads the statements of far_times.txt. Connects with libpq's variables.

require "pg"
require "sequel"

LAST = Time.utc(9999, 12, 30)
statements = $stdin.map(&:strip).reject { |line| line.empty? || line.start_with?("--") }
failures = []

# A connection of pg alone, with Ruby's own types instead of text.
def with_pg(zone)
  conn = PG.connect
  conn.type_map_for_results = PG::BasicTypeMapForResults.new(conn)
  conn.exec("SET TimeZone = '#{zone}'")
  yield "ruby-pg", ->(sql) { conn.transaction { conn.exec(sql).values } }
ensure
  conn&.close
end

def with_sequel(zone)
  options = { adapter: "postgres", host: ENV["PGHOST"], port: ENV["PGPORT"], user: ENV["PGUSER"], database: ENV["PGDATABASE"] }
  db = Sequel.connect(**options, max_connections: 1, after_connect: ->(conn) { conn.exec("SET TimeZone = '#{zone}'") })
  yield "Sequel", ->(sql) { db.transaction { db.fetch(sql).all.map(&:values) } }
ensure
  db&.disconnect
end

["Pacific/Kiritimati", "Etc/GMT+12"].each do |zone| # 14 hours before UTC, and 12 after it
  [method(:with_pg), method(:with_sequel)].each do |way|
    way.call(zone) do |name, run|
      client = "#{name}, #{zone}"
      statements.each do |statement|
        values = run.call(statement.gsub("@", client)).flatten
        next if values.all?(LAST) && !(statement.start_with?("SELECT") && values.empty?)
        failures << "#{client}: #{statement}: #{values.empty? ? "no rows" : values.join(", ")}"
      rescue StandardError => error # it rolls the call back
        failures << "#{client}: #{statement}: #{error.message.strip}"
      end
      ok, ended = %w[(rl_check('slow','@')).ok rl_unblock('slow','@')].map do |call|
        run.call("SELECT #{call.sub("@", "#{client} blocked")}").flatten.first
      end
      failures << "#{client}: the key is not blocked" if ok || !ended
    end
  end
end
abort failures.join("\n") if statements.empty? || failures.any?
