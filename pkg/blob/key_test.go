package blob

import (
	"testing"

	"github.com/vidforge/vidforge/pkg/render"
)

// What the package's own functions make is read back; nothing else is an owner's.
func TestOwnerOf(t *testing.T) {
	t.Parallel()
	tenant, asset, id := render.Tenant("a/b*"), render.NewAssetID(), render.NewID()
	w := render.Work{Tenant: tenant, Task: id, Generation: 3, Stage: render.StageSegment, Index: 7}
	for key, want := range map[string]Owner{
		SourceKey(tenant, asset, "x"): {Area: AreaSources, TenantKey: tenant.Key(), Asset: asset},
		IncomingKey(tenant, asset):    {Area: AreaIncoming, TenantKey: tenant.Key(), Asset: asset},
		WorkKey(w, "x", "video.mp4"):  {Area: AreaRenders, TenantKey: tenant.Key(), Render: id},
		WorkKey(render.Work{Tenant: tenant, Asset: asset, Stage: render.StageProbe}, "x", "y"): {Area: AreaRenders, TenantKey: tenant.Key(), Asset: asset},
	} {
		if got, ok := OwnerOf(key); !ok || got != want {
			t.Errorf("%s: %+v, %v", key, got, ok)
		}
	}
	for _, key := range []string{
		"", "x", EpochKey("x", 1), "sources/", RenderPrefix(tenant, id), "sources/" + tenant.Key() + "/" + string(asset),
		IncomingKey(tenant, asset) + "/x", "sources/" + tenant.Key() + "/" + string(id) + "/x", "incoming/" + tenant.Key() + "/" + string(id),
		"renders/" + tenant.Key() + "/task_x/y", "renders/A" + tenant.Key()[1:] + "/" + string(id) + "/x", " " + IncomingKey(tenant, asset), IncomingKey(tenant, asset) + "\n",
		"other/" + tenant.Key() + "/" + string(id) + "/x",
	} {
		if got, ok := OwnerOf(key); ok {
			t.Errorf("%q is %+v's", key, got)
		}
	}
}
