# ratelimit with Active Record, on what setup.sql prepares: as in a request, where the query cache is on, with a denial
# as a row and as an error, and in schema.rb.
#
# Connects with libpq's variables, as a role that has EXECUTE on rl_limit and rl_check.

require "active_record"
require "json"
require "stringio"

ActiveRecord::Base.legacy_connection_handling = false if ActiveRecord.version < Gem::Version.new("7")
ActiveRecord::Base.establish_connection(
  adapter: "postgresql", host: ENV["PGHOST"], port: ENV["PGPORT"], username: ENV["PGUSER"], database: ENV["PGDATABASE"]
)

class User < ActiveRecord::Base; end
class Message < ActiveRecord::Base; end

def right(what, truth)
  abort "not so: #{what}" unless truth
end

def send_message(user, body)
  Message.transaction do # an exception rolls back and returns the token
    # In FROM the function runs once. exec_query: select_one would answer from the request's query cache.
    take = "SELECT ok, retry_after, retry_at FROM rl_limit('sendMessage', $1)"
    limit = Message.connection.exec_query(take, "rl_limit", [user.to_s]).first
    Message.create!(author: user, body: body) if limit["ok"]
    limit
  end
end

def remaining(key)
  check = "SELECT remaining FROM rl_check('sendMessage', $1)"
  Message.connection.exec_query(check, "rl_check", [key.to_s]).first["remaining"]
end

user = User.create!(name: "matz").id
ActiveRecord::Base.cache do # as in each request
  # 1. An empty message breaks a constraint: the transaction rolls back, and no token is gone.
  begin
    send_message(user, "")
    abort "an empty message was sent"
  rescue ActiveRecord::StatementInvalid => error
    right "a check", error.cause.is_a?(PG::CheckViolation)
  end
  right "the token is back", remaining(user) == 3

  # 2. Three pass; the fourth is denied, by an ordinary row that says when to try again.
  %w[one two three].each { |body| right "it passes", send_message(user, body)["ok"] }
  denied = send_message(user, "one too many")
  right "it is denied", denied["ok"] == false && denied["retry_after"].between?(80_000, 86_400)
  right "a time", denied["retry_at"].is_a?(Time)

  # 3. The same as an error, which takes the transaction's write with it.
  begin
    Message.transaction do
      Message.create!(author: user, body: "one too many")
      take = "SELECT ok FROM rl_limit('sendMessage', $1, throws => true)"
      Message.connection.exec_query(take, "rl_limit", [user.to_s])
    end
    abort "it passed"
  rescue ActiveRecord::StatementInvalid => error
    result = error.cause.result
    right "PT429", result.error_field(PG::Result::PG_DIAG_SQLSTATE) == "PT429"
    detail = JSON.parse(result.error_field(PG::Result::PG_DIAG_MESSAGE_DETAIL))
    right "retryAfter", detail["retryAfter"].between?(80_000_000, 86_400_000)
  end
  right "three were sent", Message.where(author: user).pluck(:body).sort == %w[one three two]
end

# 4. JSON.
take = "SELECT ok FROM rl_limit('activerecord', config => $1)"
config = { kind: "fixed window", rate: 3, period: 60_000 }.to_json
right "a config", Message.connection.exec_query(take, "rl_limit", [config]).first["ok"]

# 5. What the query cache answers: one call is made, and its answer repeated. And what it doesn't cache.
connection = Message.connection
ways = {
  "select_value" => [->(sql) { connection.select_value(sql) }, 12],
  "select_one" => [->(sql) { connection.select_one(sql)["ok"] }, 12],
  "select_all" => [->(sql) { connection.select_all(sql).first["ok"] }, 12],
  "find_by_sql" => [->(sql) { Message.find_by_sql(sql).first["ok"] }, 12],
  "exec_query" => [->(sql) { connection.exec_query(sql).first["ok"] }, 3],
  "execute" => [->(sql) { connection.execute(sql).first["ok"] }, 3],
  "uncached" => [->(sql) { Message.uncached { connection.select_value(sql) } }, 3]
}
ways.each do |name, (call, passes)|
  ActiveRecord::Base.cache do
    answers = Array.new(12) { call.call("SELECT ok FROM rl_limit('sendMessage', 'activerecord #{name}')") }
    right "#{name}: #{passes} of 12 pass, not #{answers.count(true)}", answers.count(true) == passes
    right "#{name}: tokens", remaining("activerecord #{name}") == (passes == 3 ? 0 : 2)
  end
end

# 6. schema.rb has the tables, which then can't be loaded: they are the extension's. ignore_tables leaves them out.
dump = lambda do |ignored|
  ActiveRecord::SchemaDumper.ignore_tables = ignored
  ActiveRecord::SchemaDumper.dump(connection, StringIO.new).string.scan(/create_table "(\w+)"/).flatten
end
right "it has them", (%w[ratelimits rl_blocks rl_config] - dump.call([])).empty?
right "it leaves them out", dump.call(["ratelimits", /\Arl_/]).sort == %w[jobs messages users]
