# The blocks of the README.
require_relative "common"
require "active_support/core_ext/numeric/time"
require "tmpdir"

class ReadmeTest < Test
  README = File.read("#{__dir__}/../README.md")
  SQL, RUBY = %w[sql ruby].map { |language| README.scan(/^```#{language}\n(.*?)^```/m).flatten }

  # The first of SQL grants what calls need, and the second prunes.
  def test_the_role_that_is_made_can_make_each_call
    owner = opened(WAYS["active record"].call(user: "postgres"))
    owner.transaction do
      owner.connection.execute(SQL[0])
      owner.connection.execute("GRANT USAGE ON SCHEMA ratelimit TO app") if ENV["RATELIMIT_EDITION"] == "file"
      owner.connection.execute("SET LOCAL ROLE app")
      store = store(owner)
      assert_equal [1, 1, true], [store.increment("k"), store.read("k"), store.delete("k")]
      assert_equal [true, 1], [store.write("k", 5), store.clear]
      raise ActiveRecord::Rollback
    end
    assert_equal 2, SQL.size
    owner.connection.execute(SQL[1])
  end

  def status(application)
    Rack::MockRequest.new(application).get("/", "REMOTE_ADDR" => "192.0.2.#{rand(256)}").status
  end

  def test_the_initializer_of_rails
    $LOAD_PATH.unshift("#{__dir__}/../lib")
    given = { username: ENV.fetch("PGUSER"), database: ENV.fetch("PGDATABASE") }
    ActiveRecord::Base.establish_connection(adapter: "postgresql", **ADDRESS, **given)
    eval(RUBY[0])
    assert_equal 200, status(Rack::Attack.new(->(_env) { [200, {}, []] }))
    assert_equal 1, Rack::Attack.cache.store.clear
  ensure
    $LOAD_PATH.shift
    ActiveRecord::Base.remove_connection
  end

  def test_the_application_of_rack
    Dir.mktmpdir do |folder|
      File.write("#{folder}/config.ru", RUBY[1].sub('"rate_limit_store"', "#{__dir__}/../lib/rate_limit_store".inspect))
      application = Rack::Builder.parse_file("#{folder}/config.ru")
      application = application[0] if application.is_a?(Array) # of Rack 2
      assert_equal 200, status(application)
      assert_equal 1, opened(Rack::Attack.cache.store).clear
    end
  end
end
