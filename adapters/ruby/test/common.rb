# What the tests share: stores on the server of the environment (PGHOST, PGUSER, PGDATABASE), and the application's
# clock.
require_relative "tap"
require "minitest/autorun"
require "active_record"
require "rack/attack"
require "rack/test"
require "securerandom"
require "socket"
require "timeout"
require_relative "../lib/rate_limit_store"

# The application's clock is an hour ahead of the database's or, on the file, behind it; or stands where a test sets it.
module Application
  AHEAD = { "extension" => 3600, "file" => -3600 }.fetch(ENV["RATELIMIT_EDITION"], 0)
  class << self
    attr_accessor :stands
  end
  def now(...)
    Application.stands ? Time.at(Application.stands) : super + AHEAD
  end
end
Time.singleton_class.prepend(Application)

ActiveRecord::Base.legacy_connection_handling = false if ActiveRecord.version < Gem::Version.new("7")
ADDRESS = { host: ENV.fetch("PGHOST"), port: ENV.fetch("PGPORT") }.freeze

# Classes of Active Record, each with a pool of its own, as NAME; options are those of database.yml.
module Pools
  def self.make(name, **options)
    const_set(name, Class.new(ActiveRecord::Base) { self.abstract_class = true })
    const_get(name).establish_connection(
      adapter: "postgresql", **ADDRESS, username: ENV.fetch("PGUSER"), database: ENV.fetch("PGDATABASE"), **options
    )
    const_get(name)
  end
end

class Test < Minitest::Test
  # What a store is made of, from options of libpq.
  WAYS = {
    "active record" => ->(**options) { Pools.make("P#{SecureRandom.hex(6)}", **names_of_rails(options)) },
    "libpq" => ->(**options) { { **ADDRESS, user: ENV.fetch("PGUSER"), dbname: ENV.fetch("PGDATABASE"), **options } },
  }.freeze

  def self.names_of_rails(options)
    options.transform_keys({ user: :username, dbname: :database })
  end

  # Defines a test for each way; it gets what makes a database.
  def self.each_way(name, only: WAYS.keys, &block)
    WAYS.slice(*only).each do |way, make|
      define_method("test_#{name} by #{way}".tr(" ", "_")) { instance_exec(make, &block) }
    end
  end

  def setup
    @opened = []
    Application.stands = nil
  end

  def teardown
    @opened.each { |db| close(db) }
    Rack::Attack.clear_configuration
    Rack::Attack.cache.store = nil
    Rack::Attack.cache.prefix = "rack::attack"
  end

  def close(db)
    case db
    when PG::Connection, RateLimitStore then db.close
    when Class then db.remove_connection
    end
  end

  def opened(db)
    @opened << db
    db
  end

  # A store of its own name.
  def store(db, **options)
    opened(RateLimitStore.new(db, name: "test #{SecureRandom.hex(6)}", **options))
  end

  # The options of libpq.
  def libpq(**options)
    WAYS["libpq"].call(**options)
  end

  # A connection of this user.
  def connect(user = ENV.fetch("PGUSER"))
    opened(PG.connect(**libpq(user: user)))
  end

  # Runs the block of each in a thread, at once; what they return, and the errors that they raise.
  def at_once(list)
    gate = Queue.new
    threads = list.map do |each|
      Thread.new do
        Thread.current.report_on_exception = false
        gate.pop
        yield each
      rescue StandardError => e
        e
      end
    end
    list.each { gate << true }
    Timeout.timeout(60) { threads.map(&:value) }
  end

  # Waits until the block is true.
  def wait_until
    Timeout.timeout(60) { sleep 0.01 until yield }
  end
end
