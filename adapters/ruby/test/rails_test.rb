# The limits of Rails' own rate_limit, from Rails 7.2 on.
require_relative "common"
require "action_controller"

class RailsTest < Test
  def setup
    super
    skip "rate_limit is of Rails 7.2" unless ActionController::Base.respond_to?(:rate_limit)
  end

  # A controller that lets 3 pass in an hour, as a Rack application.
  def application(store, within: 3600, &action)
    controller = Class.new(ActionController::API) do
      rate_limit to: 3, within: within, store: store
      define_method(:index, &action || -> { head :ok })
      def self.controller_path = "limited"
    end
    ->(address) { controller.action(:index).call(Rack::MockRequest.env_for("/", "REMOTE_ADDR" => address))[0] }
  end

  each_way "three of many requests at once pass" do |make|
    get = application(store(opened(make.call)))
    assert_equal({ 200 => 3, 429 => 17 }, at_once(1..20) { get.call("192.0.2.1") }.tally)
    assert_equal 200, get.call("192.0.2.2")
  end

  def test_a_window_begins_with_a_request_and_is_a_duration_long
    owner = opened(WAYS["active record"].call(user: "postgres", pool: 1))
    get = application(store(owner), within: ActiveSupport::Duration.minutes(1))
    statuses = [0, 1, 59, 59.999, 60, 119.999].map do |seconds|
      now = 1_798_804_800_000 + (seconds * 1000)
      owner.connection.execute("SELECT set_config('ratelimit.clock', '#{now}', false)")
      get.call("2001:db8:1::5")
    end
    assert_equal [200, 200, 200, 429, 200, 200], statuses
  end

  def test_a_request_that_raises_has_been_counted
    db = opened(WAYS["active record"].call)
    get = application(store(db)) { db.transaction { raise "failed" } }
    3.times { assert_raises(RuntimeError) { get.call("192.0.2.1") } }
    assert_equal 429, get.call("192.0.2.1")
  end

  def test_it_fails_closed_or_open
    closed, open = %i[closed open].map do |on_error|
      application(store(libpq(host: "/nonexistent"), on_error: on_error, on_unchecked: ->(_) {}))
    end
    assert_raises(PG::ConnectionBad) { closed.call("192.0.2.1") }
    assert_equal 200, open.call("192.0.2.1")
  end
end
